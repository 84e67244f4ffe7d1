"""
`openapi.json`: OpenAPI 3.1, made from the table of routes, the models, the events and the examples.

`make schemas` writes the file that the gateway answers with, `make check` compares it.
"""

import json
import sys
from pathlib import Path

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import models_json_schema

from docs.openapi_examples import EXAMPLE_JOB, EXAMPLES, Example, shown
from tessera.gateway.operations.handlers import KEY_HEADER
from tessera.gateway.operations.models import Problem
from tessera.gateway.operations.routes import ROUTES, Route
from tessera_schemas.base import Json
from tessera_schemas.events import EVENT_TYPES, CloudEvent

FILE = Path(__file__).parents[1] / "services/tessera/gateway/generated/openapi.json"
REF = "#/components/schemas/{model}"


def document() -> Json:
    """The whole description."""
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    _, schemas = models_json_schema([(model, "validation") for model in _models()], ref_template=REF)
    schemas["$defs"]["SubmitBody"]["examples"] = [EXAMPLE_JOB]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tessera",
            "version": "1.0.0",
            "description": "Submit, watch and steer jobs of a shard. A token stands for a tenant, or for an operator.",
        },
        "servers": [{"url": "/", "description": "The gateway that this description comes from"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], **_stream_schemas()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models() -> list[type[BaseModel]]:
    found: dict[type[BaseModel], None] = dict.fromkeys((Problem, CloudEvent, *EVENT_TYPES))
    for route in ROUTES:
        found |= {model: None for model in (route.body, *route.answers.values()) if isinstance(model, type)}
    return list(found)


def _stream_schemas() -> Json:
    """An event with the `data` of its type, and a block of the stream that carries it, or says why the stream ends."""
    typed = [
        {"properties": {"type": {"const": event.type}, "data": _ref(event)}, "required": ["type", "data"]}
        for event in EVENT_TYPES
    ]
    complete = {"type": "object", "properties": {"as_of": {"type": "integer"}}, "required": ["as_of"]}
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_by_name("Event"), _ref(Problem), complete]},
        "description": "An event where the block has no name; of `gap` and `end` a Problem, of `complete` its `as_of`",
    }
    named = {"enum": ["gap", "end", "complete"], "description": "Left out for an event"}
    place = {"type": "string", "description": "For `after` or `Last-Event-ID`; a block of it alone is a heartbeat"}
    return {
        "Event": {"allOf": [_ref(CloudEvent)], "oneOf": typed},
        "EventBlock": {"type": "object", "properties": {"id": place, "event": named, "data": data}},
    }


def _operation(route: Route) -> Json:
    example = EXAMPLES.get(route.name, Example())
    made: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*map(_in_path, route.parameters), *_in_query(route.query), *_in_header(route)],
        "responses": {
            **{str(status): _answer(model, example.answers.get(status)) for status, model in route.answers.items()},
            **{str(status): _refusal(status, example.answers.get(status)) for status in route.refusals},
        },
    }
    if route.body is not None:
        made["requestBody"] = {
            "required": any(field.is_required() for field in route.body.model_fields.values()),
            "content": {"application/json": _content(_ref(route.body), example.body)},
        }
    return made


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(query: type[BaseModel]) -> list[Json]:
    schema = query.model_json_schema(ref_template=REF)
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": description}
        for name, description in schema.get("properties", {}).items()
    ]


def _in_header(route: Route) -> list[Json]:
    if route.name == "events":
        description = "The id of the last event that was seen"
        return [{"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"}, "description": description}]
    if not route.keyed:
        return []
    description = (
        "Names the job: sent again with the same key it is the same job. A submit needs it here or in its body"
    )
    return [
        {"name": KEY_HEADER, "in": "header", "schema": {"type": "string", "maxLength": 200}, "description": description}
    ]


def _answer(model: type[BaseModel] | str, example: BaseModel | str | None) -> Json:
    if isinstance(model, str):
        schema = STREAM if model == EVENT_STREAM else None
        return {"description": "OK", "content": {model: _content(schema, example)}}
    doc = (model.__doc__ or "").strip().splitlines()
    return {
        "description": doc[0] if doc and model.__doc__ != BaseModel.__doc__ else "OK",
        "content": {"application/json": _content(_ref(model), example)},
    }


def _refusal(status: int, example: BaseModel | str | None) -> Json:
    made: Json = {"description": "Refused", "content": {"application/json": _content(_ref(Problem), example)}}
    if status in (429, 503):
        made["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return made


def _content(schema: Json | None, example: BaseModel | JsonValue) -> Json:
    """A media type: its schema and an example, where there are any."""
    made: Json = {} if schema is None else {"schema": schema}
    if example is not None:
        made["example"] = shown(example)
    return made


def _ref(model: type[BaseModel]) -> Json:
    return _by_name(model.__name__)


def _by_name(schema: str) -> Json:
    return {"$ref": REF.format(model=schema)}


EVENT_STREAM = "text/event-stream"
STREAM = {
    "type": "string",
    "contentMediaType": EVENT_STREAM,
    "contentSchema": {"type": "array", "items": _by_name("EventBlock")},
}


def text() -> bytes:
    """The whole file."""
    # A line for each part, so that changes can be read, and no indentation: spaces would be half of what is installed.
    return (json.dumps(document(), indent=0, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is current."""
    if "--check" not in arguments:
        FILE.write_bytes(text())
    elif FILE.read_bytes() != text():
        print(f"stale: {FILE.name}; run `make schemas`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
