"""`openapi.json`: OpenAPI 3.1, made from the table of routes and the models. Pure."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tessera.gateway.handlers import KEY_HEADER
from tessera.gateway.models import Problem
from tessera.gateway.routes import ROUTES, Route

Json = dict[str, Any]
REF = "#/components/schemas/{model}"


def document() -> Json:
    """The whole description."""
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    _, schemas = models_json_schema([(model, "validation") for model in _models()], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tessera",
            "version": "1.0.0",
            "description": "Submit, watch and steer jobs of a shard. A token stands for a tenant, or for an operator.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models() -> list[type[BaseModel]]:
    found: dict[type[BaseModel], None] = {Problem: None}
    for route in ROUTES:
        found |= {model: None for model in (route.body, *route.answers.values()) if isinstance(model, type)}
    return list(found)


def _operation(route: Route) -> Json:
    made: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*map(_in_path, route.parameters), *_in_query(route.query), *_in_header(route)],
        "responses": {
            **{str(status): _answer(model) for status, model in route.answers.items()},
            **{str(status): _refusal(status) for status in route.refusals},
        },
    }
    if route.body is not None:
        made["requestBody"] = {
            "required": any(field.is_required() for field in route.body.model_fields.values()),
            "content": {"application/json": {"schema": _ref(route.body)}},
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


def _answer(model: type[BaseModel] | str) -> Json:
    if isinstance(model, str):
        return {"description": "OK", "content": {model: {}}}
    doc = (model.__doc__ or "").strip().splitlines()
    return {
        "description": doc[0] if doc and model.__doc__ != BaseModel.__doc__ else "OK",
        "content": {"application/json": {"schema": _ref(model)}},
    }


def _refusal(status: int) -> Json:
    made: Json = {"description": "Refused", "content": {"application/json": {"schema": _ref(Problem)}}}
    if status in (429, 503):
        made["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return made


def _ref(model: type[BaseModel]) -> Json:
    return {"$ref": REF.format(model=model.__name__)}
