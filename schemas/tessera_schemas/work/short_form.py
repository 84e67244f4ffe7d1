"""
Jobs as people write them, in the form that the contract has: `gpus: 8, cpu: 16, memory: 64Gi`, one role without a list.

Files, the HTTP API and the SDK accept this short form beside the full one; NATS carries the full one alone. Unknown
fields stay as they are, so that the one place that refuses them is the contract.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.cluster.resource_kinds import KINDS
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text import quantities
from tessera_schemas.text.quantities import QuantityError
from tessera_schemas.work.templates import PLACEHOLDER

Convert = tuple[str, Callable[[Any], int]]

UNITS = {"thousandths": quantities.cpu_milli, "bytes": quantities.memory_bytes}
RESOURCES: dict[str, Convert] = {
    **{kind.word: (field, UNITS[kind.unit]) for field, kind in KINDS.items()},
    "gpu_memory": ("gpu_memory_bytes", quantities.memory_bytes),
    "cpu_limit": ("cpu_limit_milli", quantities.cpu_milli),
    "memory_limit": ("memory_limit_bytes", quantities.memory_bytes),
}
VOLUME: dict[str, Convert] = {"size": ("size_bytes", quantities.memory_bytes)}
JOB: dict[str, Convert] = {
    "time_limit": ("time_limit_seconds", quantities.seconds),
    "termination_grace": ("termination_grace_seconds", quantities.seconds),
    "ttl_after_finished": ("ttl_seconds_after_finished", quantities.seconds),
}
ONE_NODE = ("gpu_models", "node_selector", "affinity", "affinity_any", "affinity_preferred", "tolerations")
OF_ITS_NODES = (*ONE_NODE, "topology", "spread", "max_skew", "anti_affinity", "neighbours")
ONE_ROLE = ("replicas", "resources", *OF_ITS_NODES, "template")
"""Fields of a role that a job with a single one may have at its top level."""
WITHIN_ONE_ROLE = {"resources": ("gpus", "gpu_milli", *RESOURCES), "template": ("image", "command")}
"""Fields of a role's resources and template that a job with a single role may have at its top level."""


class ShortFormError(QuantityError):
    """
    Quantities that are none: each with the field where it stands, as `resources.cpu`, and what is wrong.

    `made` is the mapping with a 1 in the place of each, so that the rest of it can be judged.
    """

    def __init__(self, made: Json, *faults: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in faults))
        self.made, self.faults = made, faults

    def reasons(self, within: str = "") -> tuple[Reason, ...]:
        """The same as reasons against a command; `within`: what stands before each field."""
        return tuple(
            Reason(code=Code.INVALID_FIELD, field=f"{within}{field}", detail=text[:200]) for field, text in self.faults
        )


FieldFaults = list[tuple[str, str]]


def full_job(job: Mapping[str, Any]) -> Json:
    """
    The spec in its full form; one in full form stays as it is. Raises ShortFormError for all quantities that are none.
    """
    faults: FieldFaults = []
    spec = _converted(job, JOB, "", faults)
    if "roles" not in spec:
        for part, names in WITHIN_ONE_ROLE.items():
            whole = spec.get(part, {})
            said = [name for name in names if name in spec and isinstance(whole, dict) and name not in whole]
            if said:
                spec[part] = {**whole, **{name: spec.pop(name) for name in said}}
        role = {name: spec.pop(name) for name in ONE_ROLE if name in spec}
        if role:
            spec["roles"] = [{"name": "worker", **role}]
    if isinstance(spec.get("roles"), list):
        spec["roles"] = [_role(role, faults) for role in spec["roles"]]
    if faults:
        raise ShortFormError(spec, *dict.fromkeys(faults))
    return spec


def converted(value: Mapping[str, Any], table: Mapping[str, Convert]) -> Json:
    """The mapping with the fields of the table under their full names, as integers. Raises ShortFormError."""
    faults: FieldFaults = []
    made = _converted(value, table, "", faults)
    if faults:
        raise ShortFormError(made, *faults)
    return made


def _converted(value: Mapping[str, Any], table: Mapping[str, Convert], within: str, faults: FieldFaults) -> Json:
    made: Json = {}
    for name, given in value.items():
        target, convert = table.get(name, (name, None))
        made[target] = given if convert is None else _quantity(convert, given, f"{within}{name}", faults)
    return made


def toleration_of(text: str) -> dict[str, str]:
    """
    `spot`, `spot=yes` or `spot=yes:NoSchedule` as a toleration, written as `kubectl taint` writes taints.

    Without `=` it is of every value, with an empty value of that alone; without an effect of every effect.
    """
    before, _, effect = text.partition(":")
    key, equals, value = before.partition("=")
    said = {"key": key} | ({"operator": "Equal"} if equals else {}) | ({"value": value} if value else {})
    return said | ({"effect": effect} if effect else {})


def _role(role: Any, faults: FieldFaults) -> Any:
    if not isinstance(role, dict):
        return role
    if isinstance(role.get("tolerations"), list):
        borne = [toleration_of(each) if isinstance(each, str) else each for each in role["tolerations"]]
        role = {**role, "tolerations": borne}
    if isinstance(role.get("template"), dict):
        role = {**role, "template": _template_of_pods(role["template"], faults)}
    if not isinstance(role.get("resources"), dict):
        return role
    asked = dict(role["resources"])
    gpus = asked.get("gpus")
    if isinstance(gpus, float) or (isinstance(gpus, str) and not PLACEHOLDER.fullmatch(gpus)):
        # Half a GPU is a share of one; 8 are eight whole ones.
        milli = _quantity(quantities.gpu_milli, gpus, "resources.gpus", faults)
        asked.pop("gpus")
        asked |= {"gpus": milli // 1000} if milli % 1000 == 0 else {"gpu_milli": milli}
    return {**role, "resources": _converted(asked, RESOURCES, "resources.", faults)}


def _template_of_pods(template: Json, faults: FieldFaults) -> Json:
    """Sizes of volumes and what init containers ask for, as people write them."""
    made = dict(template)
    if isinstance(made.get("volumes"), list):
        made["volumes"] = [
            _converted(volume, VOLUME, "volumes.", faults) if isinstance(volume, dict) else volume
            for volume in made["volumes"]
        ]
    if isinstance(made.get("init_containers"), list):
        made["init_containers"] = [_init_container(each, faults) for each in made["init_containers"]]
    return made


def _init_container(container: Any, faults: FieldFaults) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    asked = _converted(container["resources"], RESOURCES, "init_containers.resources.", faults)
    return {**container, "resources": asked}


def _quantity(convert: Callable[[Any], int], given: Any, field: str, faults: FieldFaults) -> int:
    try:
        return convert(given)
    except ValueError as error:
        faults.append((field, str(error)))
        return 1
