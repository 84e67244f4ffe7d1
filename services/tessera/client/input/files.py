"""
Job and configuration files as people write them, turned into what is sent: YAML, friendly quantities, one-role jobs.

Only this program reads YAML; on the wire there is JSON with integers. Unknown fields stay as they are, so that the one
place that refuses them is the contract.
"""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import orjson
import yaml

from tessera.client.outcomes import Exit, Failure, Mistaken, Refused
from tessera.kernel.process import files
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.text import quantities
from tessera_schemas.work.short_form import Convert, ShortFormError, converted, full_job

QUOTAS: dict[str, Convert] = {
    "cpu": ("cpu_milli", quantities.cpu_milli),
    "memory": ("memory_bytes", quantities.memory_bytes),
    "gpus": ("gpu_milli", quantities.gpu_milli),
}
CLASSES = "device_classes"
DEFAULTS: dict[str, Convert] = {"time_limit": ("time_limit_seconds", quantities.seconds)}
SESSIONS: dict[str, Convert] = {name: (f"{name}_seconds", quantities.seconds) for name in ("idle", "warning")}
POD_AMOUNTS: dict[str, Convert] = {name: QUOTAS[name] for name in ("cpu", "memory")}
OF_PODS = ("pod_default", "pod_min", "pod_max")
LONGEST: dict[str, Convert] = {"time_limit_max": ("time_limit_max_seconds", quantities.seconds)}
OFF_IS_A_WORD = ("preset", "backfill", "idle", "action")


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


def read_text(path: Path, newline: str | None = None) -> str:
    """A file of text as some editors write it: with or without a byte-order mark. Raises Failure."""
    try:
        return files.read_text(path, newline)
    except files.UnreadableFile as error:
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
    """The spec as it is sent. Raises Mistaken for quantities that are none."""
    spec, mistaken = read_job(value, where)
    if mistaken is not None:
        raise mistaken
    return spec


def read_job(value: Json, where: str) -> tuple[Json, Mistaken | None]:
    """The spec as it is sent, and what is against its quantities; those that are none are a 1 in it."""
    try:
        return full_job(value), None
    except ShortFormError as error:
        return error.made, Mistaken(f"{where}: {error}", error.reasons())


def config_body(value: Json, where: str) -> Json:
    """
    A configuration as it is sent; `quotas: {gpus: 32, memory: 1Ti}` stands for the list of quotas, `2d` for time.

    `all` and `50%` are parts of the pool, and `device_classes: {dra.net: 16}` are quotas of devices by class.
    """
    body = dict(value)
    if isinstance(body.get("defaults"), dict):
        body["defaults"] = _read(body["defaults"], DEFAULTS, where)
        if isinstance(sessions := body["defaults"].get("sessions"), dict):
            body["defaults"]["sessions"] = _read(sessions, SESSIONS, where)
    if isinstance(body.get("tenants"), list):
        body["tenants"] = [_tenant(tenant, where) for tenant in body["tenants"]]
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


def _queue(queue: Any, where: str) -> Any:
    if isinstance(queue, dict) and isinstance(queue.get("idle"), dict):
        queue = {**queue, "idle": {name: _word_off(name, value) for name, value in queue["idle"].items()}}
    if isinstance(queue, dict):
        queue = _read(queue, LONGEST, where)
    if not isinstance(queue, dict) or not isinstance(queue.get("quotas"), dict | list):
        return queue
    if isinstance(queue["quotas"], list):
        return {**queue, "quotas": [_quota(quota) for quota in queue["quotas"]]}
    parts = {QUOTAS[name][0]: _percent(value) for name, value in queue["quotas"].items() if name in QUOTAS}
    amounts = {name: value for name, value in queue["quotas"].items() if _percent(value) is None or name not in QUOTAS}
    classes = amounts.pop(CLASSES) if isinstance(amounts.get(CLASSES), dict) else {}
    named = _read(amounts, QUOTAS, where)
    quotas = [{"resource": resource, "nominal": nominal} for resource, nominal in named.items()]
    quotas += [{"resource": f"{OF_CLASS}{name}", "nominal": count} for name, count in classes.items()]
    quotas += [
        {"resource": name, "nominal": 0, "part_percent": part} for name, part in parts.items() if part is not None
    ]
    return {**queue, "quotas": quotas}


def _quota(quota: Any) -> Any:
    """A quota of the list; `nominal: all` and `nominal: 50%` are parts of the pool."""
    percent = _percent(quota.get("nominal")) if isinstance(quota, dict) else None
    return quota if percent is None else {**quota, "nominal": 0, "part_percent": percent}


def _percent(value: Any) -> int | None:
    """The percentage that `all` and `50%` are of the pool; None of anything else."""
    if value == "all":
        return 100
    found = re.fullmatch(r"([0-9]{1,3}) ?%", value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def _tenant(tenant: Any, where: str) -> Any:
    if not isinstance(tenant, dict) or not isinstance(tenant.get("limits"), dict):
        return tenant
    limits = _read(tenant["limits"], LONGEST, where)
    of_pods = {name: limits[name] for name in OF_PODS if isinstance(limits.get(name), dict)}
    return {**tenant, "limits": limits | {name: _read(said, POD_AMOUNTS, where) for name, said in of_pods.items()}}


def _read(said: Json, table: dict[str, Convert], where: str) -> Json:
    """Quantities as people write them, as integers. Raises Failure."""
    try:
        return converted({name: value for name, value in said.items() if value is not None or name not in table}, table)
    except ShortFormError as error:
        raise Failure(Exit.USAGE, f"{where}: {error}") from error


def as_json(value: Any) -> bytes:
    """
    The value as JSON: integers of any size and keys that are numbers, too, so that it is the contract that judges them.

    Raises Refused for what JSON has no form for, such as bytes, or a mapping that holds itself.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise not_json(str(error)) from error


def not_json(why: str) -> Refused:
    """The refusal of what is no job at all."""
    from tessera_schemas.reasons import Code
    from tessera_schemas.text.reading import refusal

    return Refused((refusal(Code.NOT_JSON, detail=why),))
