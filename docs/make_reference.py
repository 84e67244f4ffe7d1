"""
The reference pages of job, configuration and settings, made from the models: `make schemas` writes them.

A field's meaning is its description in the model, its bounds are those that are checked; nothing is said twice.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from tessera.binder.workloads.mark_table import SYSTEMS, Mark, System
from tessera.kernel.process.settings import PREFIX, ServiceSettings
from tessera_schemas import base
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.work import short_form

Json = dict[str, Any]
NAME_PATTERN = next(part.pattern for part in base.Name.__metadata__)
ONE_LINE = re.compile(r"\s*\n\s*")
SHORT: Mapping[str, Mapping[str, str]] = {
    "Resources": {full: word for word, (full, _) in short_form.RESOURCES.items()},
    "ContainerResources": {full: word for word, (full, _) in short_form.RESOURCES.items()},
    "Volume": {full: word for word, (full, _) in short_form.VOLUME.items()},
    "Defaults": {"time_limit_seconds": "time_limit"},
    **{name: {"time_limit_max_seconds": "time_limit_max"} for name in ("Queue", "Limits")},
    "JobSpec": {full: word for word, (full, _) in short_form.JOB.items()},
}
"""A field's name in people's files, where that is another one."""

JOB_HEAD = """\
# Reference: the job

Every field of a job, made from the model that all services read it with. Files, HTTP and Python take it in the full
form, whose names stand first, and in the short one: with the name in brackets, quantities are written as people write
them (`cpu: 500m`, `memory: 64Gi`, `time_limit: 2h`), and a job with a single role has the role's fields (`replicas`,
`resources`, `template`, …) and its `gpus`, `cpu`, `memory`, `image` and `command` at the top level. Answers have the
full form. [Examples](../examples/training.yaml); [pods](../pods.md); [launchers](../launchers.md).

An unknown field is refused with its path, never ignored. A field without a default is empty unless it is set.
"""
CONFIG_HEAD = """\
# Reference: the configuration

Every field of the configuration of a shard, which `tessera apply -f FILE` sends as a whole, made from the model.
`tessera config init` writes a first one for the cluster that is there. [Queues](../queues.md) and
[policy](../policy.md) say what each choice does and costs; [an example](../examples/config.yaml).

A field without a default is empty unless it is set, or has the defaults of its own fields. Quotas may be written short,
as `quotas: {gpus: all, cpu: 256, memory: 50%}`; with the name in brackets, times are written as people write them
(`time_limit: 12h`).
"""
MARKS_HEAD = """\
# Reference: marks of other systems

Labels and annotations by which users' objects speak to other systems, and what becomes of each where the pods name our
scheduler; made from the table that the binder reads. A refused one keeps the pod from being placed, with the reason
`NotSupportedYet`; one that is told stands in the condition `tessera.io/NotHonoured` of the pod. So does every other
mark in the domain of one of these systems. `*` is any domain; with a value, marks that hold it are meant, and the first
row that fits counts. Notes of the other system are passed over.
[Users' own pods](../kubernetes.md#marks-of-other-systems).
"""
SETTINGS_HEAD = """\
# Reference: settings of the services

Every setting, made from the models. In order of precedence: the environment (the name in capitals, with `TESSERA_`
before it), `tessera.toml` or the file that `TESSERA_CONFIG_FILE` names (its top level for all services, a table per
service for that one), the credential file, the default. A wrong setting, an unknown key of the file or a table that is
no service's ends the start with one sentence that names it. An unknown variable `TESSERA_…` is told in a line on stderr
with the nearest name, and the start goes on.
"""


def job_page() -> str:
    """The reference of the job: a table per model, in the order in which they are met."""
    return JOB_HEAD + _model_tables(JobSpec)


def config_page() -> str:
    """The reference of the configuration; what it has in common with jobs is linked."""
    return CONFIG_HEAD + _model_tables(ConfigBody)


def settings_page() -> str:
    """The reference of settings: what all services share, then those of each."""
    modules = {importlib.import_module(f"tessera.{name}.settings").__name__ for name in SERVICES}
    models = {model.service: model for model in ServiceSettings.__subclasses__() if model.__module__ in modules}
    shared = ServiceSettings.model_json_schema()["properties"]
    lines = [SETTINGS_HEAD, "\n## Every service\n", _settings_table(shared, {})]
    for name in SERVICES:
        schema = models[name].model_json_schema()
        own = {field: each for field, each in schema["properties"].items() if shared.get(field) != each}
        if own:
            lines += [f"\n## {name}\n", _settings_table(own, schema.get("$defs", {}))]
    return "\n".join(lines)


def _model_tables(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    models = {model.__name__: schema, **schema["$defs"]}
    parts = []
    for name in _in_reading_order(schema, models):
        fields = models[name]["properties"]
        required = models[name].get("required", ())
        rows = (_row(name, field, each, field in required, models) for field, each in fields.items())
        parts.append(f"\n## {name}\n\n{models[name].get('description', '').strip()}\n\n" + _table(rows))
    return "".join(parts)


def _in_reading_order(schema: Json, models: Mapping[str, Json]) -> list[str]:
    order = [name for name, each in models.items() if each is schema]
    for name in order:
        for reference in _references(models[name]["properties"]):
            if reference not in order and "properties" in models[reference]:
                order.append(reference)
    return order


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for each in part.values():
            yield from _references(each)
    elif isinstance(part, list):
        for each in part:
            yield from _references(each)


def _row(model: str, field: str, schema: Json, required: bool, models: Mapping[str, Json]) -> tuple[str, ...]:
    short = SHORT.get(model, {}).get(field)
    name = f"`{field}`" + (f" (`{short}`)" if short else "")
    default = "required" if required else _default(schema)
    return name, _kind(schema, models), default, ONE_LINE.sub(" ", schema["description"])


def _settings_table(fields: Mapping[str, Json], models: Mapping[str, Json]) -> str:
    rows = (
        (f"`{PREFIX}{name.upper()}`", _kind(each, models), _default(each), each["description"])
        for name, each in fields.items()
    )
    return _table(rows)


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells), ""])


def _default(schema: Json) -> str:
    value = schema.get("default")
    if value in ("", [], None) or isinstance(value, dict):
        return ""  # none, or those of its fields
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "see below" if isinstance(value[0], dict) else ", ".join(f"`{each}`" for each in value)
    return f"`{value:,}`" if isinstance(value, int) else f"`{value}`"


def _kind(schema: Json, models: Mapping[str, Json]) -> str:
    """A type in words, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = models[name]
        if "enum" in found:
            return _kind(found, models)
        return f"[{name}](#{name.lower()})" if "properties" in found else "anything"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(each, models) for each in schema["anyOf"])
        return " or ".join(kinds)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" if each else "empty" for each in schema.get("enum", [schema.get("const")]))
    return _plain(schema, models)


def _plain(schema: Json, models: Mapping[str, Json]) -> str:
    match schema.get("type"):
        case "array":
            most = f", at most {schema['maxItems']}" if "maxItems" in schema and "prefixItems" not in schema else ""
            return f"list of {_kind(schema.get('items', {}), models)}{most}"
        case "object":
            values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
            return f"map to {_kind(values if isinstance(values, dict) else {}, models)}"
        case "integer" | "number" as kind:
            return f"{kind}{_bounds(schema)}"
        case "string":
            kinds = {"password": "secret", "path": "path"}
            return "name" if schema.get("pattern") == NAME_PATTERN else kinds.get(schema.get("format", ""), "text")
        case "boolean":
            return "boolean"
        case None:
            return "anything"
    return str(schema["type"])


def _bounds(schema: Json) -> str:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    low = "" if least is None else f"above {least}" if "exclusiveMinimum" in schema else f"{least:,}"
    high = "" if most is None or most >= base.INT_MAX else f"to {most:,}" if "maximum" in schema else f"below {most:,}"
    if least is not None and "exclusiveMinimum" not in schema and not high.startswith("to"):
        low = f"from {low}"
    return "".join(f" {part}" for part in (low, high) if part)


def marks_page() -> str:
    """Every mark of another system that is known, and what becomes of it."""
    rows = [_marks_row(system, mark) for system in SYSTEMS for mark in system.marks]
    return "\n".join([MARKS_HEAD, "| system | mark | | what it gives |", "|---|---|---|---|", *rows, ""])


def _marks_row(system: System, mark: Mark) -> str:
    keys = ", ".join(f"`{key}`" for key in mark.keys) + (f" with `{mark.value}`" if mark.value else "")
    return f"| {system.name} | {keys} | {mark.treatment.value} | {mark.detail} |"


PAGES = {
    "docs/reference/job.md": job_page,
    "docs/reference/configuration.md": config_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/marks.md": marks_page,
}
