"""`openapi.json` describes exactly what there is, and answers are as it says."""

import json
import re
from typing import Any

import jsonschema
import pytest

from docs.make_openapi import FILE, document, text
from docs.openapi_examples import EXAMPLES
from tessera.gateway.entrance.problems import REFUSED, STATUS
from tessera.gateway.operations.models import Problem
from tessera.gateway.operations.routes import ROUTES
from tessera_schemas.events import EVENT_TYPES, PublicEvent
from tessera_schemas.reasons import Code
from tests.builders import admitted, job_spec
from tests.contract.golden_files import golden
from tests.unit.gateway.gateway_world import World

Json = dict[str, Any]
METHODS = ("get", "post", "put", "delete", "patch")


def operations(described: Json) -> dict[tuple[str, str], Json]:
    return {(m.upper(), path): o for path, item in described["paths"].items() for m, o in item.items() if m in METHODS}


def refs(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(refs, node.values()))
    return set().union(*map(refs, node)) if isinstance(node, list) else set()


def validated(described: Json, method: str, path: str, status: int, body: Json) -> None:
    """The body is what the description says of this answer."""
    answer = operations(described)[method, path]["responses"][str(status)]["content"]["application/json"]["schema"]
    schema = {**answer, "components": described["components"]}
    jsonschema.Draft202012Validator(schema).validate(body)


def test_it_describes_every_route_and_nothing_else() -> None:
    described = document()
    assert described["openapi"] == "3.1.0"
    assert set(operations(described)) == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for operation in operations(described).values()]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    described = document()
    schemas = described["components"]["schemas"]
    assert {ref.rpartition("/")[2] for ref in refs(described)} <= set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_operation_needs_a_token_names_its_path_parameters_and_its_refusals() -> None:
    described = document()
    assert described["security"] == [{"token": []}]
    for (_, path), operation in operations(described).items():
        in_path = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
        assert {"401", "403", "429"} <= set(operation["responses"])


def test_every_status_that_a_code_stands_for_is_described_or_may_come_from_anything() -> None:
    described = {int(status) for operation in operations(document()).values() for status in operation["responses"]}
    anywhere = {405, 500}
    assert {STATUS.get(code, REFUSED) for code in Code} <= described | anywhere


def contents(described: Json) -> list[tuple[str, Json]]:
    """Media types of all bodies and answers, each with where it stands."""
    found = []
    for (_, path), operation in operations(described).items():
        for at, part in (("body", operation.get("requestBody", {})), *operation["responses"].items()):
            found += [(f"{path} {at} {media}", content) for media, content in part.get("content", {}).items()]
    return found


def test_the_main_operations_have_examples_of_their_requests_and_answers_that_are_what_the_schemas_say() -> None:
    described = document()
    shown = [(at, content) for at, content in contents(described) if "example" in content]
    for at, content in shown:
        schema = {**content["schema"], "components": described["components"]}
        assert not list(jsonschema.Draft202012Validator(schema).iter_errors(content["example"])), at
    assert {at for at, _ in shown} >= {
        "/v1/jobs body application/json",
        "/v1/jobs 201 application/json",
        "/v1/jobs 422 application/json",
        "/v1/jobs 200 application/json",
        "/v1/jobs/{job_id} 200 application/json",
        "/v1/jobs/{job_id} 404 application/json",
        "/v1/jobs/{job_id}/cancel body application/json",
        "/v1/jobs/{job_id}/cancel 202 application/json",
        "/v1/events 200 text/event-stream",
    }


def test_an_example_stands_at_a_status_that_its_operation_has_and_belongs_to_the_code_it_says() -> None:
    by_name = {route.name: route for route in ROUTES}
    for name, example in EXAMPLES.items():
        assert set(example.answers) <= {*by_name[name].answers, *by_name[name].refusals}
        for status, answer in example.answers.items():
            if isinstance(answer, Problem):
                assert STATUS.get(Code(answer.code), REFUSED) == status


@pytest.mark.parametrize("event", EVENT_TYPES, ids=lambda event: event.type)
def test_the_schema_of_the_stream_accepts_every_event_and_none_with_another_types_data(
    event: type[PublicEvent],
) -> None:
    described = document()
    block = operations(described)["GET", "/v1/events"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    assert block["contentSchema"]["items"] == {"$ref": "#/components/schemas/EventBlock"}
    components = described["components"]
    alternatives = components["schemas"]["EventBlock"]["properties"]["data"]["contentSchema"]["anyOf"]
    assert {"$ref": "#/components/schemas/Event"} in alternatives
    stored = json.loads(golden(event.type).read_bytes())
    accepts = jsonschema.Draft202012Validator({**components["schemas"]["Event"], "components": components})
    accepts.validate(stored)
    assert not accepts.is_valid({**stored, "type": "io.tessera.job.unheard-of.v1"})
    assert not accepts.is_valid({**stored, "data": {"job_id": 7}})


def test_the_description_says_where_it_is_served() -> None:
    assert document()["servers"][0]["url"] == "/"


async def test_answers_are_as_described(world: World) -> None:
    await world.commit(admitted("k1"))
    job = admitted("k1").job_id
    spec = job_spec().model_dump(mode="json", exclude_defaults=True)
    token, operator = world.token("lab"), world.token(None)
    one = "/v1/jobs/{job_id}"
    async with world.gateway():
        described = (await world.ask("GET", "/openapi.json", token)).body
        for method, path, body in (
            ("POST", "/v1/jobs", {"key": "k2", "spec": spec}),
            ("POST", "/v1/jobs", {"key": "k2", "spec": spec}),
            ("POST", "/v1/jobs", {"spec": spec}),
            ("GET", "/v1/jobs", None),
            ("GET", one, None),
            ("GET", f"{one}/explain", None),
            ("GET", f"{one}/spec", None),
            ("GET", f"{one}/priority", None),
            ("POST", f"{one}/cancel", {"why": "done"}),
            ("POST", f"{one}/hold", None),
            ("POST", f"{one}/release", None),
            ("POST", f"{one}/requeue", None),
            ("GET", "/v1/nodes", None),
            ("GET", "/v1/queues", None),
            ("POST", "/v1/slots", {"role": spec["roles"][0]}),
            ("GET", "/v1/line", None),
            ("GET", "/v1/quotes", None),
            ("GET", "/v1/quotes/scores", None),
            ("POST", "/v1/quotes", {"spec": spec, "changes": True}),
            ("GET", "/v1/shares", None),
            ("GET", "/v1/me", None),
            ("GET", "/v1/status", None),
        ):
            said = await world.ask(method, path.replace("{job_id}", job), token, body)
            validated(described, method, path, said.status, said.body)
        refused = await world.ask("POST", "/v1/jobs", operator, {"key": "k", "spec": spec})
        validated(described, "POST", "/v1/jobs", refused.status, refused.body)
    assert described == document()


async def test_the_example_of_a_job_is_admitted_as_it_stands(world: World) -> None:
    body, token = document()["components"]["schemas"]["SubmitBody"]["examples"][0], world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, body)
    assert said.status == 201, said.body


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_every_code_has_a_status_of_a_refusal(code: Code) -> None:
    assert 400 <= STATUS.get(code, REFUSED) <= 599


def test_the_gateway_answers_with_what_is_made_from_its_table() -> None:
    assert FILE.read_bytes() == text()
