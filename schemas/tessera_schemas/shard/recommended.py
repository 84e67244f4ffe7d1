"""
Defaults of a person's configuration file: the recommended policy and the usual grants.

The models' own defaults stay those of 0.3 for ever, since values equal to them are left out of what is stored. So
`tessera apply`, which reads a person's file, writes these values out before the configuration is sent, and a shown
configuration writes them out again (`explicit`): applied unchanged, it means the same. Configurations sent by programs
are complete as they are: a field that is left out has the model's default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.config import ConfigBody
from tessera_schemas.text.units import format_part


@dataclass(frozen=True, slots=True)
class Recommended:
    """A value of `policy` that serves who chooses none; what it brings and what it costs, for people."""

    field: str
    value: str | bool | int
    brings: str
    costs: str


POLICY = (
    Recommended(
        "preset",
        "fair",
        "a waiting job of a higher class, or of a queue within its own quota, gets its GPUs without waiting until "
        "others end",
        "runs are stopped after their checkpoint notice and lose what they did since their last checkpoint; at most "
        "`evictions_max` times in a job's life, never before `min_runtime_seconds`",
    ),
    Recommended(
        "backfill",
        "reserve",
        "large gangs do not starve: room is kept for the first job that finds none, and small ones pass it only where "
        "they do not delay it",
        "some GPUs stand free for a while for the job that they are kept for; jobs of one GPU wait a tenth longer on a "
        "cluster full of them",
    ),
    Recommended(
        "order_patience_seconds",
        432_000,
        "in queues with `order: expected` no job is passed by younger ones after five days of waiting",
        "where most of the work is large gangs, some of them wait a tenth longer than the last would by age",
    ),
    Recommended(
        "defragment",
        True,
        "a job that waits for room in one piece gets it although free GPUs lie scattered",
        "preemptible runs are moved: stopped after their checkpoint notice and started elsewhere, never for less gain "
        "than loss",
    ),
    Recommended(
        "defragment_min_gain_gpu_seconds",
        3600,
        "nothing moves for less than a GPU-hour of gain",
        "a job that would gain less waits",
    ),
    Recommended(
        "move_answer_seconds",
        60,
        "a run is asked before it moves, and saves its work, agrees or says that it stays; who keeps silent moves",
        "room in one piece comes a minute later where somebody keeps silent",
    ),
    Recommended(
        "cordoned",
        "keep",
        "what runs on a node that somebody cordons goes on to its end; `tessera drain NODE --evict` says otherwise",
        "a cordoned node is empty only when its last run has ended; `restart` moves those for which there is room "
        "elsewhere once the node has been cordoned for `cordoned_seconds`, and each loses what it did since its last "
        "checkpoint",
    ),
    Recommended(
        "kept_beside_gpus_percent",
        50,
        "jobs without GPUs leave half of each free GPU's part of CPU and memory to those that ask for the GPU, and "
        "give back the rest of it to a job within its queue's nominal GPUs",
        "on an idle node with GPUs a job without GPUs gets half of the CPU and memory at most, and is stopped where it "
        "is in the way",
    ),
    Recommended(
        "lent_kept_seconds",
        300,
        "an owner of lent quota has it back five minutes after a disruption budget first kept it, whatever the budget",
        "pods on lent quota are then stopped although their PodDisruptionBudget allows no disruption",
    ),
    Recommended(
        "gang_topology",
        "preferred",
        "where `topology` has levels, gangs that say no topology are in as few domains as can be, on a trace in 1.05 "
        "racks on average for 1.77; none waits for it",
        "a decision about a gang takes some milliseconds longer on thousands of nodes; the trace was packed as fully",
    ),
    Recommended(
        "idle",
        "warn",
        "runs that hold GPUs and use none are told of, by event, `explain` and metric",
        "nothing is taken away; without a source of measurements nothing is measured",
    ),
)

GRANTED = ("normal", "low")
"""The priority classes that a tenant may use whose file does not say which; as far as they are configured."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A value that was written out for a file that did not say it."""

    field: str
    value: Any
    why: str = ""


def filled(body: Mapping[str, Any]) -> tuple[Json, tuple[Filled, ...]]:
    """
    The configuration with what it leaves out written out, and what that was.

    `body` is JSON as it was read, not judged yet: what is malformed stays as it is, for the contract to refuse.
    """
    made, added = dict(body), []
    policy = body.get("policy", {})
    if isinstance(policy, dict):
        missing = [found for found in POLICY if found.field not in policy]
        made["policy"] = {**policy, **{found.field: found.value for found in missing}}
        added += [Filled(f"policy.{found.field}", found.value, found.brings) for found in missing]
    granted, tenants = _granted(body), body.get("tenants")
    if granted and isinstance(tenants, list):
        made["tenants"] = [_with_grants(tenant, granted) for tenant in tenants]
        added += [
            Filled(f"tenants.{new['name']}.priority_classes", list(granted))
            for old, new in zip(tenants, made["tenants"], strict=True)
            if new is not old
        ]
    return made, tuple(added)


def explicit(body: ConfigBody) -> Json:
    """The configuration as JSON that means the same when it is read as a file: nothing in it would be filled."""
    given: Json = body.model_dump(mode="json", exclude_defaults=True)
    given["policy"] = {
        **{found.field: getattr(body.policy, found.field) for found in POLICY},
        **given.get("policy", {}),
    }
    given["tenants"] = [
        tenant if "priority_classes" in tenant else {**tenant, "priority_classes": []} for tenant in given["tenants"]
    ]
    for quota in (quota for queue in given["queues"] for quota in queue.get("quotas", ())):
        if (percent := quota.pop("part_percent", None)) is not None:
            quota["nominal"] = format_part(percent)
    return given


def _granted(body: Mapping[str, Any]) -> Sequence[str]:
    """The usual classes that the configuration has."""
    classes = body.get("priority_classes")
    if classes is None:
        return GRANTED
    named = [found.get("name") for found in classes if isinstance(found, dict)] if isinstance(classes, list) else []
    return [name for name in GRANTED if name in named]


def _with_grants(tenant: Any, granted: Sequence[str]) -> Any:
    if not isinstance(tenant, dict) or "name" not in tenant or "priority_classes" in tenant:
        return tenant
    return {**tenant, "priority_classes": list(granted)}
