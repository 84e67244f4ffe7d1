"""
Groups of a job's roles that are on one GPU model, the order in which their owner wants models, and shares that are on
distinct GPUs. Pure.
"""

from collections import Counter
from collections.abc import Sequence

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.storing.fast import replace
from tessera_schemas.job import JobSpec, Role

NO_LAUNCHER = (None, "plain")


def on_one_model(needs: Sequence[RoleNeed], spec: JobSpec, adopted: bool) -> tuple[RoleNeed, ...]:
    """
    The needs of the spec's roles, each with what it shares a model with.

    A launcher makes one group of all pods. Nobody says of users' own pods whether they are one: roles that may use
    the same nodes are. Else each role is by itself, with those that go to the nodes of its pods.
    """
    if spec.pods() == 1 and needs[0].more == 0 and len(spec.roles[0].gpu_models) < 2:
        return tuple(needs)
    launched, first = spec.launcher not in NO_LAUNCHER, dict[object, str]()
    found = [
        _bound(need, role, launched, first.setdefault(_group(need, launched, adopted), need.name))
        if need.need.total_gpu_milli
        else need
        for need, role in zip(needs, spec.roles, strict=True)
    ]
    # What one pod alone would say of others is left out, so that the needs of most jobs stay equal.
    pods = Counter[str]()
    for need in found:
        pods[need.one_model] += need.replicas + need.more
    # NCCL refuses two ranks on one device; a lone share has nobody to be apart from.
    shares = sum(need.replicas + need.more for need in found if need.need.apart)
    return tuple(
        replace(
            need,
            need=replace(need.need, apart=need.need.apart and shares > 1),
            one_model=need.one_model if pods[need.one_model] > 1 or need.model_order else "",
        )
        for need in found
    )


def _group(need: RoleNeed, launched: bool, adopted: bool) -> object:
    """Equal for the roles that are on one model together."""
    if launched:
        return ()
    asked = need.need
    return (
        (asked.gpu_models, asked.node_selector, asked.affinity, asked.affinity_any)
        if adopted
        else need.beside or need.name
    )


def _bound(need: RoleNeed, role: Role, launched: bool, first: str) -> RoleNeed:
    order = tuple(dict.fromkeys(role.gpu_models))
    return replace(
        need,
        need=replace(need.need, apart=launched and need.need.gpu_milli > 0),
        one_model="" if role.mixed_models else first,
        model_order=order if len(order) > 1 and not role.mixed_models else (),
    )
