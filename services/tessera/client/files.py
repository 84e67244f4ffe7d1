"""
Job and configuration files as people write them, turned into what is sent: YAML, friendly quantities, one-role jobs.

Only this program reads YAML; on the wire there is JSON with integers. Unknown fields stay as they are, so that the one
place that refuses them is the contract.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from tessera.client import quantities
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.process import text_file
from tessera_schemas.resource_kinds import KINDS
from tessera_schemas.templates import PLACEHOLDER

Json = dict[str, Any]
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
QUOTAS: dict[str, Convert] = {
    "cpu": ("cpu_milli", quantities.cpu_milli),
    "memory": ("memory_bytes", quantities.memory_bytes),
    "gpus": ("gpu_milli", quantities.gpu_milli),
}
OFF_IS_A_WORD = ("preset", "backfill", "idle", "action")
OF_ITS_NODES = ("gpu_models", "node_selector", "affinity", "tolerations", "topology", "spread")
ONE_ROLE = ("replicas", "resources", *OF_ITS_NODES, "template")
"""What a job with a single role may say at its top level."""


class _StrictLoader(yaml.SafeLoader):
    """A key that appears twice is an error, as it is on the wire."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Json:
    """One mapping. Raises Failure."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """A file of text as some editors write it: with or without a byte-order mark. Raises Failure."""
    try:
        return text_file.read_text(path)
    except text_file.UnreadableFile as error:
        raise Failure(Exit.USAGE, str(error)) from error


def parse_yaml(text: str, where: str) -> Json:
    """One mapping. Raises Failure."""
    try:
        value = yaml.load(text, _StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise Failure(Exit.USAGE, f"{where}: is not YAML ({why}); mend that line") from error
    if not isinstance(value, dict):
        raise Failure(Exit.USAGE, f"{where}: holds no mapping; see the examples in docs/")
    return value


def job_spec(value: Json, where: str) -> Json:
    """The spec as it is sent. Raises Failure for a quantity that is none."""
    spec = _converted(value, JOB, where)
    if "roles" not in spec and any(name in spec for name in ONE_ROLE):
        role = {name: spec.pop(name) for name in ONE_ROLE if name in spec}
        spec["roles"] = [{"name": "worker", **role}]
    if isinstance(spec.get("roles"), list):
        spec["roles"] = [_role(role, where) for role in spec["roles"]]
    return spec


def config_body(value: Json, where: str) -> Json:
    """A configuration as it is sent; `quotas: {gpus: 32, memory: 1Ti}` stands for the list of quotas."""
    body = dict(value)
    if isinstance(body.get("queues"), list):
        body["queues"] = [_queue(queue, where) for queue in body["queues"]]
    if isinstance(body.get("templates"), list):
        body["templates"] = [_template(template, where) for template in body["templates"]]
    if isinstance(body.get("policy"), dict):
        body["policy"] = {name: _word_off(name, value) for name, value in body["policy"].items()}
    return body


def _word_off(name: str, value: Any) -> Any:
    """YAML reads the word `off` as false: where the contract has the word, that is what was meant."""
    return "off" if value is False and name in OFF_IS_A_WORD else value


def _template(template: Any, where: str) -> Any:
    """A template's job in the notation of job files; a placeholder may stand for a whole number, as in `gpus`."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return template
    return {**template, "spec": job_spec(template["spec"], f"{where}: templates.{template.get('name', '')}")}


def _role(role: Any, where: str) -> Any:
    if not isinstance(role, dict):
        return role
    if isinstance(role.get("template"), dict):
        role = {**role, "template": _template_of_pods(role["template"], where)}
    if not isinstance(role.get("resources"), dict):
        return role
    asked = dict(role["resources"])
    gpus = asked.get("gpus")
    if isinstance(gpus, float) or (isinstance(gpus, str) and not PLACEHOLDER.fullmatch(gpus)):
        # Half a GPU is a share of one; 8 are eight whole ones.
        milli = _quantity(quantities.gpu_milli, gpus, f"{where}: resources.gpus")
        asked.pop("gpus")
        asked |= {"gpus": milli // 1000} if milli % 1000 == 0 else {"gpu_milli": milli}
    return {**role, "resources": _converted(asked, RESOURCES, where)}


def _template_of_pods(template: Json, where: str) -> Json:
    """Sizes of volumes and what init containers ask for, as people write them."""
    made = dict(template)
    if isinstance(made.get("volumes"), list):
        made["volumes"] = [_converted(v, VOLUME, where) if isinstance(v, dict) else v for v in made["volumes"]]
    if isinstance(made.get("init_containers"), list):
        made["init_containers"] = [_init_container(each, where) for each in made["init_containers"]]
    return made


def _init_container(container: Any, where: str) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    return {**container, "resources": _converted(container["resources"], RESOURCES, where)}


def _queue(queue: Any, where: str) -> Any:
    if isinstance(queue, dict) and isinstance(queue.get("idle"), dict):
        queue = {**queue, "idle": {name: _word_off(name, value) for name, value in queue["idle"].items()}}
    if not isinstance(queue, dict) or not isinstance(queue.get("quotas"), dict):
        return queue
    named = _converted(queue["quotas"], QUOTAS, where)
    return {**queue, "quotas": [{"resource": resource, "nominal": nominal} for resource, nominal in named.items()]}


def _converted(value: Json, table: dict[str, Convert], where: str) -> Json:
    made: Json = {}
    for name, given in value.items():
        target, convert = table.get(name, (name, None))
        made[target] = given if convert is None else _quantity(convert, given, f"{where}: {name}")
    return made


def _quantity(convert: Callable[[Any], int], given: Any, where: str) -> int:
    try:
        return convert(given)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"{where}: {error}") from error
