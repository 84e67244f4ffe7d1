"""What a client may do, and what it is told when it may not: over real HTTP, before an in-memory shard."""

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera.admission.decide.outcome import Origin, judge_tenant_command
from tessera.admission.decide.policy import AdmissionPolicy
from tessera.kernel.errors import Full, InvariantViolation, Transient, UnknownOutcome
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import Answer
from tessera_schemas.config import Queue
from tessera_schemas.facts import UpdateRequested
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import read_tenant_command
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, work_refused
from tests.unit.gateway.gateway_world import World

SPEC = job_spec().model_dump(mode="json", exclude_defaults=True)
K1 = job_id(SHARD, "lab", "k1")


def submit(key: str = "k1", **spec: Any) -> dict[str, Any]:
    return {"key": key, "spec": {**SPEC, **spec}}


# -- submitting


async def test_a_submit_is_answered_once_the_ledger_has_the_job(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, submit())
        assert (said.status, said.body["state"], said.body["job_id"]) == (201, "queued", K1)
        assert said.headers["Location"] == f"/v1/jobs/{K1}"
        assert said.body["as_of"] == world.committed.state.n
        seen = await world.ask("GET", f"/v1/jobs/{K1}", token)
        assert (seen.status, seen.body["job"]["phase"]) == (200, "queued")
        assert seen.body["as_of"] >= said.body["as_of"]
    assert world.commands == [("lab", {"kind": "submit_job", "v": 1, "key": "k1", "tenant": "lab", "spec": SPEC})]


async def test_a_token_that_is_bound_to_a_user_says_who_submits(world: World) -> None:
    ana, anybody = world.token("lab", "ana"), world.token("lab")
    async with world.gateway():
        unnamed = await world.ask("POST", "/v1/jobs", ana, submit("k1"))
        own = await world.ask("POST", "/v1/jobs", ana, submit("k1", user="ana"))
        others = await world.ask("POST", "/v1/jobs", ana, submit("k2", user="bob"))
        asked = await world.ask("POST", "/v1/jobs", ana, submit("k2", user="bob") | {"dry_run": True})
        said = await world.ask("POST", "/v1/jobs", anybody, submit("k3", user="bob"))
        whose = [(await world.ask("GET", "/v1/me", token)).body for token in (ana, anybody)]
    assert (unnamed.body["state"], own.body["state"], said.body["state"]) == ("queued", "existing", "queued")
    assert [command["spec"]["user"] for _, command in world.commands] == ["ana", "ana", "bob"]
    for refused in (others, asked):
        assert (refused.status, refused.code, refused.body["field"]) == (403, "Forbidden", "spec.user")
        assert "bound to user ana; leave user out" in refused.body["sentence"]
    assert whose == [{"tenant": "lab", "user": "ana"}, {"tenant": "lab", "user": ""}]


async def test_a_script_of_256_kib_comes_in_with_a_limit_that_nobody_set(world: World) -> None:
    roles = [{**SPEC["roles"][0], "template": {"image": "train:1", "command": ["sh", "-c", *["xxx\n" * 4096] * 16]}}]
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, submit(roles=roles))
        too_large = await world.ask("POST", "/v1/jobs", token, submit("k2", roles=roles * 2))
    assert (said.status, said.body["state"]) == (201, "queued")
    assert (too_large.status, too_large.code) == (413, "TooLarge")


async def test_the_same_submit_again_is_the_same_job_and_another_under_its_key_a_conflict(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit())
        again = await world.ask("POST", "/v1/jobs", token, submit())
        other = await world.ask("POST", "/v1/jobs", token, submit(name="another"))
    assert (again.status, again.body["state"], again.body["job_id"]) == (200, "existing", K1)
    assert (other.status, other.code, other.body["field"]) == (409, "IdempotencyConflict", "key")


async def test_a_dry_run_says_what_admission_would_and_leaves_no_job(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        well = await world.ask("POST", "/v1/jobs", token, {**submit(), "dry_run": True})
        unread = {"name": "odd", "queue": "nowhere", "gpus": 1, "image": "i", "memory": "lots"}
        no = await world.ask("POST", "/v1/jobs", token, {"key": "k1", "spec": unread, "dry_run": True})
        there = await world.ask("GET", f"/v1/jobs/{K1}", token)
    assert (well.status, well.body["state"], well.body["job_id"]) == (200, "dry_run", K1)
    assert (no.status, no.code, no.body["field"]) == (422, "InvalidField", "spec.resources.memory")
    assert there.status == 404
    assert [command["dry_run"] for _, command in world.commands] == [True, True]


async def test_a_dry_run_is_answered_as_the_submit_would_be_by_the_ledger(world: World) -> None:
    body = config_body()
    lab = body.tenants[0].model_copy(update={"limits": body.tenants[0].limits.model_copy(update={"jobs": 1})})
    await world.commit(config_proposed(body.model_copy(update={"tenants": (lab, *body.tenants[1:])}), 1))
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit())
        same, taken, over, after = [
            await world.ask("POST", "/v1/jobs", token, {**asked, "dry_run": True})
            for asked in (
                submit(),
                submit(name="another"),
                submit("k2"),
                submit("k3", after=[{"condition": "afterok", "job": "a" * 20}]),
            )
        ]
    assert (same.status, same.body["state"]) == (200, "dry_run")
    assert (taken.status, taken.code) == (409, "IdempotencyConflict")
    assert (over.status, over.code, over.body["field"]) == (429, "LimitExceeded", "limits.jobs")
    assert {reason["code"] for reason in after.body["reasons"]} == {"LimitExceeded", "NoSuchJob"}


async def test_two_different_submits_at_once_under_one_key_make_one_job_and_one_conflict(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        asked = [world.ask("POST", "/v1/jobs", token, submit(name=name)) for name in ("one", "two")]
        said = await asyncio.gather(*asked)
    assert sorted(answer.status for answer in said) == [201, 409]


async def test_the_key_may_stand_in_the_header_and_must_not_differ_from_the_body(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        in_header = await world.ask("POST", "/v1/jobs", token, {"spec": SPEC}, headers={"Idempotency-Key": "k1"})
        differs = await world.ask("POST", "/v1/jobs", token, submit("k2"), headers={"Idempotency-Key": "k3"})
        none = await world.ask("POST", "/v1/jobs", token, {"spec": SPEC})
        bad = await world.ask("POST", "/v1/jobs", token, {"spec": SPEC}, headers={"Idempotency-Key": "a b"})
    assert (in_header.status, in_header.body["job_id"]) == (201, K1)
    assert (differs.status, differs.code) == (422, "InvalidField")
    assert (none.status, none.code, none.body["field"]) == (422, "MissingField", "Idempotency-Key")
    assert (bad.status, bad.code) == (422, "InvalidField")


async def test_what_a_submit_lacks_is_told_at_once_and_where_its_fields_stand(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        nothing = await world.ask("POST", "/v1/jobs", token, {})
        beside = await world.ask("POST", "/v1/jobs", token, {"key": "k1", "name": "train", "gpus": 8})
        stream = await world.ask("GET", "/v1/events?type=job.faild.v1", token)
    assert [reason["field"] for reason in nothing.body["reasons"]] == ["Idempotency-Key", "spec"]
    assert beside.body["sentence"].endswith("gpus: there is no such field (the fields of a job stand in `spec`)")
    assert stream.body["reasons"][0]["detail"] == "no such event type; is job.failed.v1 meant?"


async def test_a_job_in_short_form_is_sent_in_full_and_is_the_same_job(world: World) -> None:
    token = world.token("lab")
    short = {"name": "train", "queue": "research", "gpus": 8, "cpu": 16, "memory": "64Gi", "image": "i"}
    asked = {"gpus": 8, "cpu_milli": 16_000, "memory_bytes": 64 * 2**30}
    full = {
        "name": "train",
        "queue": "research",
        "roles": [{"name": "worker", "resources": asked, "template": {"image": "i"}}],
    }
    async with world.gateway():
        first = await world.ask("POST", "/v1/jobs", token, {"key": "k1", "spec": short})
        again = await world.ask("POST", "/v1/jobs", token, {"key": "k1", "spec": full})
    assert (first.status, again.status) == (201, 200)
    assert world.commands[0][1]["spec"] == world.commands[1][1]["spec"] == full


async def test_amounts_that_are_none_are_refused_with_all_that_admission_has_against_the_rest(world: World) -> None:
    def judge(tenant: str, command: dict[str, Any]) -> Answer:
        parsed = read_tenant_command(json.dumps(command).encode())
        return judge_tenant_command(
            parsed, Origin(SHARD, tenant, 1), AdmissionPolicy(tree=world.committed.state.tree)
        ).answer

    world.judge, token = judge, world.token("lab")
    short = {"name": "train", "queue": "nowhere", "gpus": 8, "cpu": "x", "memory": "lots", "image": "i", "turbo": 1}
    async with world.gateway():
        asked = {"key": "k2", "spec": {**short, "time_limit": "soon"}}
        wrong = await world.ask("POST", "/v1/jobs", token, asked)
    assert (wrong.status, wrong.code) == (422, "InvalidField")
    assert [(reason["code"], reason["field"]) for reason in wrong.body["reasons"]] == [
        ("InvalidField", "spec.time_limit"),
        ("InvalidField", "spec.resources.cpu"),
        ("InvalidField", "spec.resources.memory"),
        ("UnknownField", "turbo"),
        ("NoSuchQueue", "queue"),
    ]


async def test_a_job_gets_another_priority_class_and_free_slots_are_told(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit())
        said = await world.ask("POST", f"/v1/jobs/{K1}/priority", token, {"priority_class": "low"})
        none = await world.ask("POST", f"/v1/jobs/{K1}/priority", token, {})
        slots = await world.ask("GET", "/v1/slots", token)
    assert (said.status, none.status, none.code) == (202, 422, "MissingField")
    assert world.commands[-1] == (
        "lab",
        {"kind": "set_priority", "v": 1, "job_id": K1, "tenant": "lab", "priority_class": "low"},
    )
    assert [pool["pool"] for pool in slots.body["items"]] == ["default"]
    assert {size["gpus"] for size in slots.body["items"][0]["sizes"]} >= {1, 2, 4, 8}


UPDATED = {"kind": "update_requested", "job_id": K1, "changes": {"time_limit_seconds": 60, "name": "new"}}


async def test_a_waiting_job_goes_to_another_queue_and_one_that_runs_does_not(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit())
        said = await world.ask("POST", f"/v1/jobs/{K1}/queue", token, {"queue": "prod"})
        none = await world.ask("POST", f"/v1/jobs/{K1}/queue", token, {})
        await world.commit(orders=(world.committed.line(),))
        runs = await world.ask("POST", f"/v1/jobs/{K1}/queue", token, {"queue": "prod"})
    assert (said.status, none.status, none.code) == (202, 422, "MissingField")
    moved = {"kind": "move_job", "v": 1, "job_id": K1, "tenant": "lab", "queue": "prod"}
    assert [command for _, command in world.commands if command["kind"] == "move_job"] == [moved]
    assert (runs.status, runs.code) == (409, "NotWaiting")


async def test_a_job_does_not_go_to_a_queue_whose_longest_time_limit_is_shorter(world: World) -> None:
    token, body = world.token("lab"), config_body(Queue(name="research"), Queue(name="prod", time_limit_max_seconds=9))
    async with world.gateway():
        await world.commit(config_proposed(body, world.committed.state.config.version))
        await world.ask("POST", "/v1/jobs", token, submit())
        said = await world.ask("POST", f"/v1/jobs/{K1}/queue", token, {"queue": "prod"})
    assert (said.status, said.code) == (422, "ExceedsJobLimit")


async def test_a_waiting_job_gets_another_spec_and_one_that_runs_a_lower_time_limit(world: World) -> None:
    token, stranger, path = world.token("lab"), world.token("other"), f"/v1/jobs/{K1}/update"
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit())
        said = await world.ask("POST", path, token, {"time_limit_seconds": 60, "name": "new", "after": None})
        none = await world.ask("POST", path, token, {})
        own = await world.ask("POST", path, token, {"after": [{"condition": "afterok", "job": K1}]})
        await world.commit(UpdateRequested.model_validate(UPDATED))
        spec = await world.ask("GET", f"/v1/jobs/{K1}/spec", token)
        await world.commit(orders=(world.committed.line(),))
        lower = await world.ask("POST", path, token, {"time_limit_seconds": 30})
        runs = await world.ask("POST", path, token, {"time_limit_seconds": 90, "name": "newer"})
        strange = await world.ask("POST", path, stranger, {"name": "mine"})
    assert (said.status, none.status, none.code) == (202, 422, "InvalidField")
    told = {"kind": "update_job", "v": 1, "job_id": K1, "tenant": "lab", "time_limit_seconds": 60, "name": "new"}
    assert world.commands[1] == ("lab", told)
    assert (own.status, own.body["reasons"][0]["field"]) == (422, "after")
    assert (spec.body["spec"]["time_limit_seconds"], spec.body["spec"]["name"]) == (60, "new")
    assert (lower.status, runs.status, strange.status) == (202, 409, 404)
    assert {reason["field"] for reason in runs.body["reasons"]} == {"time_limit_seconds", "name"}


async def test_a_refused_submit_brings_all_reasons_with_their_numbers(world: World) -> None:
    reasons = (
        Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail="nowhere"),
        Reason(code=Code.EXCEEDS_JOB_LIMIT, field="gpus_per_job", numbers={"wanted": 9, "limit": 8}),
    )
    world.judge = lambda tenant, command: Answer(accepted=False, reasons=reasons)
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, submit())
    assert (said.status, said.code) == (422, "NoSuchQueue")
    assert [reason["code"] for reason in said.body["reasons"]] == ["NoSuchQueue", "ExceedsJobLimit"]
    assert said.body["reasons"][1]["numbers"] == {"wanted": 9, "limit": 8}
    assert said.body["sentence"] == reasons[0].sentence()


async def test_what_only_the_committer_counts_is_told_too(world: World) -> None:
    body = config_body()
    lab = body.tenants[0].model_copy(update={"limits": body.tenants[0].limits.model_copy(update={"jobs": 1})})
    await world.commit(config_proposed(body.model_copy(update={"tenants": (lab, *body.tenants[1:])}), 1))
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, submit("k1"))
        with capture_logs() as logs:
            said = await world.ask("POST", "/v1/jobs", token, submit("k2"))
    assert (said.status, said.code) == (429, "LimitExceeded")
    assert "job_submitted" not in {log["event"] for log in logs}
    assert int(said.headers["Retry-After"]) == said.body["retry_after"] > 0


async def test_a_submit_that_nobody_answers_in_time_is_accepted_with_its_id(world: World) -> None:
    world.answers = False
    token = world.token("lab")
    async with world.gateway(answer_seconds=0.1):
        said = await world.ask("POST", "/v1/jobs", token, submit())
    assert (said.status, said.body["state"], said.body["job_id"]) == (202, "stored", K1)
    assert len(world.commands) == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Full("its backlog is full"), 429, "BacklogFull"),
        (Transient("NATS is away"), 503, "Unavailable"),
        (UnknownOutcome("no answer"), 503, "Unavailable"),
    ],
    ids=["full", "away", "unknown"],
)
async def test_a_submit_that_is_not_certainly_stored_is_never_a_success(
    world: World, error: Exception, status: int, code: str
) -> None:
    token = world.token("lab")
    world.bus_faults.only = "submit."
    async with world.gateway(publish_seconds=0.1):
        world.bus_faults.error = error
        said = await world.ask("POST", "/v1/jobs", token, submit())
    assert (said.status, said.code) == (status, code)
    assert said.headers["Retry-After"] == str(said.body["retry_after"])


async def test_an_operators_token_submits_nothing(world: World) -> None:
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, submit())
    assert (said.status, said.code) == (403, "Forbidden")
    assert not world.commands


# -- bad input

HUGE = "1" * 5000
BAD_BODIES = {
    "nothing": (b"", 422, "MissingField"),
    "no JSON": (b"{", 400, "NotJson"),
    "no object": (b"[]", 400, "NotJson"),
    "not UTF-8": (b'{"key":"\xff"}', 400, "NotJson"),
    "NaN": (b'{"key":NaN}', 400, "NotJson"),
    "a number beyond every float": (b'{"spec":{"a":1e999}}', 400, "NotJson"),
    "a number of thousands of digits": (b'{"spec":{"a":%b}}' % HUGE.encode(), 400, "NotJson"),
    "half a surrogate": (b'{"key":"k","spec":{"a":"\\ud800"}}', 400, "NotJson"),
    "a key twice": (b'{"key":"a","key":"b"}', 400, "DuplicateKey"),
    "a key twice, deep inside": (b'{"key":"a","spec":{"b":[{"c":1,"c":2}]}}', 400, "DuplicateKey"),
    "nested deeply": (b'{"spec":' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "NotJson"),
    "nested absurdly": (b"[" * 50_000, 400, "NotJson"),
    "an unknown field": (b'{"key":"a","spec":{},"tenant":"ops"}', 422, "UnknownField"),
    "another type": (b'{"key":7,"spec":{}}', 422, "InvalidField"),
}


@pytest.mark.parametrize(("body", "status", "code"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_body_that_cannot_be_a_submit_is_refused_before_anything_is_stored(
    world: World, body: bytes, status: int, code: str
) -> None:
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs", token, data=body, headers={"Content-Type": "application/json"})
    assert (said.status, said.code) == (status, code)
    assert said.body["sentence"]
    assert not world.commands


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
async def test_a_large_body_is_refused_whatever_the_method(world: World, method: str) -> None:
    token = world.token("lab")
    async with world.gateway(body_bytes_max=2000):
        said = await world.ask(
            method, "/v1/jobs", token, data=b"x" * 2001, headers={"Content-Type": "application/json"}
        )
    assert (said.status, said.code) == (413, "TooLarge")


async def test_a_body_of_another_type_or_packed_is_refused(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        form = await world.ask("POST", "/v1/jobs", token, data=b"a=b")
        packed = await world.ask(
            "POST",
            "/v1/jobs",
            token,
            data=b"{}",
            headers={"Content-Type": "application/json", "Content-Encoding": "identity, gzip"},
        )
    assert (form.status, form.body["field"]) == (422, "Content-Type")
    assert (packed.status, packed.body["field"]) == (422, "Content-Encoding")


async def test_a_body_that_never_ends_is_given_up(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(body_seconds=0.1):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n"
        )
        writer.write(head.encode() + b"{")
        assert b" 422 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("?nope=1", "nope", "UnknownField"),
        ("?limit=0", "limit", "InvalidField"),
        ("?limit=501", "limit", "InvalidField"),
        ("?limit=x", "limit", "InvalidField"),
        ("?limit=1&limit=2", "limit", "DuplicateKey"),
        ("?cursor=x", "cursor", "InvalidField"),
        ("?cursor=%C3%A9", "cursor", "InvalidField"),
        ("?queue=NO", "queue", "InvalidField"),
    ],
)
async def test_a_query_that_means_nothing_is_refused(world: World, query: str, field: str, code: str) -> None:
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("GET", f"/v1/jobs{query}", token)
    assert (said.code, said.body["field"]) == (code, field)
    assert said.status in (400, 422)


async def test_an_unknown_path_and_an_unknown_method_are_typed(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        path = await world.ask("GET", "/v1/nope", token)
        method = await world.ask("DELETE", "/v1/jobs", token)
    assert (path.status, path.code) == (404, "NoSuchPath")
    assert (method.status, method.code) == (405, "MethodNotAllowed")
    assert set(method.headers["Allow"].split(",")) == {"GET", "POST"}


# -- who may come in

EVERY = (
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("DELETE", "/v1/jobs"),
    ("OPTIONS", "/v1/jobs"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/events"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
)


@pytest.mark.parametrize(("method", "path"), EVERY)
async def test_without_a_token_nothing_is_told_whatever_the_method_and_path(
    world: World, method: str, path: str
) -> None:
    token = world.token("lab")
    async with world.gateway():
        said = [
            await world.ask(method, path, headers=headers)
            for headers in (
                {},
                {"Authorization": f"Basic {token}"},
                {"Authorization": token},
                {"Authorization": "Bearer "},
                {"Authorization": f"Bearer {token}x"},
                {"Authorization": "Bearer tessera_a_b"},
            )
        ]
    assert {(answer.status, answer.code) for answer in said} == {(401, "Unauthorized")}
    assert said[0].headers["WWW-Authenticate"] == "Bearer"


async def test_two_tokens_in_one_request_are_none(world: World) -> None:
    tokens = [world.token("lab"), world.token("ops")]
    async with world.gateway():
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        lines = [f"Authorization: Bearer {token}" for token in tokens]
        writer.write("\r\n".join(["GET /v1/jobs HTTP/1.1", "Host: localhost", *lines, "", ""]).encode())
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "a@localhost", "["]
)
async def test_another_host_is_refused_before_the_token_is_looked_at(world: World, host: str) -> None:
    async with world.gateway():
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(f"GET /v1/jobs HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        status = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
    assert b" 403 " in status or b" 400 " in status


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "LOCALHOST", "tessera.lan:1"])
async def test_our_own_names_are_answered(world: World, host: str) -> None:
    token = world.token("lab")
    async with world.gateway(allowed_hosts=("tessera.lan",)):
        assert (await world.ask("GET", "/v1/jobs", token, headers={"Host": host})).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://ui.example:1"])
async def test_a_page_of_another_origin_is_refused(world: World, origin: str) -> None:
    token = world.token("lab")
    async with world.gateway(allowed_origins=("https://ui.example",)):
        said = await world.ask("POST", "/v1/jobs", token, submit(), headers={"Origin": origin})
    assert (said.status, said.code, said.body["field"]) == (403, "Forbidden", "Origin")
    assert not world.commands


async def test_a_page_of_ours_or_of_an_allowed_origin_may_ask(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(allowed_origins=("https://ui.example",)):
        for origin in (world.url, "https://ui.example"):
            said = await world.ask("GET", "/v1/jobs", token, headers={"Origin": origin})
            assert said.status == 200
            assert "Access-Control-Allow-Origin" not in said.headers


async def test_too_many_requests_of_one_token_wait_and_others_do_not(world: World) -> None:
    fast, slow = world.token("lab"), world.token("ops")
    async with world.gateway(requests_per_second=1, requests_burst=3):
        said = [await world.ask("GET", "/v1/jobs", fast) for _ in range(4)]
        other = await world.ask("GET", "/v1/jobs", slow)
    assert [answer.status for answer in said] == [200, 200, 200, 429]
    assert (said[3].code, said[3].headers["Retry-After"], said[3].body["retry_after"]) == ("RateLimited", "1", 1)
    assert other.status == 200


async def test_a_flood_without_tokens_is_told_to_wait_and_takes_nothing_from_those_with_one(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        said = [(await world.ask("GET", "/v1/jobs")).status for _ in range(40)]
        with_one = await world.ask("GET", "/v1/jobs", token)
    assert set(said) == {401, 429}
    assert with_one.status == 200


async def test_no_answer_and_no_log_line_holds_a_token_or_may_be_cached(
    world: World, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    token = world.token("lab")
    secret = token.rpartition("_")[2]
    async with world.gateway():
        said = [await world.ask("GET", "/v1/jobs", token), await world.ask("GET", "/v1/jobs", f"{token}x")]
    out, err = capfdbinary.readouterr()
    assert secret.encode() not in out + err
    assert all(secret not in str(answer.body) for answer in said)
    assert {answer.headers["Cache-Control"] for answer in said} == {"no-store"}


# -- seeing one's own


async def test_another_tenants_job_does_not_exist_for_anything(world: World) -> None:
    await world.commit(admitted("k1", tenant="lab"))
    stranger, owner, operator = world.token("ops"), world.token("lab"), world.token(None)
    paths = [("GET", f"/v1/jobs/{K1}"), ("GET", f"/v1/jobs/{K1}/explain")]
    paths += [("POST", f"/v1/jobs/{K1}/{verb}") for verb in ("cancel", "hold", "release")]
    async with world.gateway():
        asked = [(method, path.replace(K1, job)) for method, path in paths for job in (K1, "a" * 20)]
        answers = await asyncio.gather(*(world.ask(method, path, stranger) for method, path in asked))
        assert [(said.status, said.code) for said in answers] == [(404, "NoSuchJob")] * len(asked)
        assert not world.commands
        assert (await world.ask("GET", f"/v1/jobs/{K1}", owner)).status == 200
        assert (await world.ask("GET", f"/v1/jobs/{K1}", operator)).status == 200


async def test_a_list_holds_ones_own_jobs_and_an_operators_all(world: World) -> None:
    await world.commit(*(admitted(f"k{i}", tenant=tenant) for i in range(3) for tenant in ("lab", "other")))
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        own = await world.ask("GET", "/v1/jobs", lab)
        every = await world.ask("GET", "/v1/jobs", operator)
        others = await world.ask("GET", "/v1/jobs?tenant=other", operator)
        refused = await world.ask("GET", "/v1/jobs?tenant=other", lab)
    assert {job["tenant"] for job in own.body["items"]} == {"lab"}
    assert [len(answer.body["items"]) for answer in (own, every, others)] == [3, 6, 3]
    assert (refused.status, refused.code) == (403, "Forbidden")


async def test_users_work_in_kubernetes_that_is_refused_is_in_the_list_of_its_tenant(world: World) -> None:
    await world.commit(admitted("k1"), work_refused(), work_refused("batch/Job/other/uid-1", tenant="other"))
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway(views_age_seconds=0):
        own = await world.ask("GET", "/v1/jobs", lab)
        refused = await world.ask("GET", "/v1/jobs?phase=refused", lab)
        every = await world.ask("GET", "/v1/jobs?phase=refused", operator)
        await world.commit(work_refused(refused=False))
        after = await world.ask("GET", "/v1/jobs", lab)
    assert sorted(job["phase"] for job in own.body["items"]) == ["queued", "refused"]
    (work,) = refused.body["items"]
    assert (work["tenant"], work["owner"], work["reason"]["code"]) == ("lab", "Job/train", "NoSuchQueue")
    assert [job["tenant"] for job in every.body["items"]] in (["lab", "other"], ["other", "lab"])
    assert [job["phase"] for job in after.body["items"]] == ["queued"]


async def test_refused_work_is_shown_and_explained_and_takes_no_orders(world: World) -> None:
    refusal = work_refused()
    await world.commit(refusal)
    lab, other = world.token("lab"), world.token("other")
    path = f"/v1/jobs/{refusal.work_id}"
    async with world.gateway():
        shown = await world.ask("GET", path, lab)
        explained = await world.ask("GET", f"{path}/explain", lab)
        hidden = await world.ask("GET", path, other)
        cancelled = await world.ask("POST", f"{path}/cancel", lab, {})
    assert shown.status == 200
    assert (shown.body["job"]["phase"], shown.body["job"]["reason"]["code"]) == ("refused", "NoSuchQueue")
    assert (explained.status, explained.body["phase"]) == (200, "refused")
    assert explained.body["sentence"].startswith(f"train ({refusal.work_id}) refused: ")
    assert any("Job/train is in no queue" in note for note in explained.body["notes"])
    assert (hidden.status, hidden.code) == (404, "NoSuchJob")
    assert (cancelled.status, cancelled.code) == (404, "NoSuchJob")
    assert "Job/train is refused" in cancelled.body["reasons"][0]["detail"]


async def test_jobs_are_found_by_any_text_that_names_them_and_a_user_until_the_jobs_end(world: World) -> None:
    lab, operator = world.token("lab"), world.token(None)
    await world.commit(
        admitted("k1", job_spec(name="Train-Big".lower(), user="ada")),
        admitted("k2", job_spec(name="other", user="bob")),
        admitted("k3", job_spec(name="train-theirs"), tenant="other"),
    )
    found: dict[str, list[str]] = {}
    async with world.gateway():
        for sought in ("TRAIN", "ada", K1[3:12], "nobody", "research"):
            said = await world.ask("GET", f"/v1/jobs?search={sought}", lab)
            found[sought] = sorted(row["name"] for row in said.body["items"])
        every = await world.ask("GET", "/v1/jobs?search=train&queue=research", operator)
        long = await world.ask("GET", f"/v1/jobs?search={'x' * 101}", lab)
    both = ["other", "train-big"]
    assert found == {
        "TRAIN": ["train-big"],
        "ada": ["train-big"],
        K1[3:12]: ["train-big"],
        "nobody": [],
        "research": both,
    }
    assert sorted(row["name"] for row in every.body["items"]) == ["train-big", "train-theirs"]
    assert (long.status, long.body["field"]) == (422, "search")


async def test_pages_follow_each_other_without_gap_or_repeat_while_jobs_come(world: World) -> None:
    for i in range(7):
        await world.commit(admitted(f"k{i}"))
    token = world.token("lab")
    async with world.gateway(views_age_seconds=0):
        first = await world.ask("GET", "/v1/jobs?limit=3", token)
        await world.commit(admitted("late"))
        second = await world.ask("GET", f"/v1/jobs?limit=3&cursor={first.body['next']}", token)
        third = await world.ask("GET", f"/v1/jobs?limit=3&cursor={second.body['next']}", token)
    keys = [job["key"] for page in (first, second, third) for job in page.body["items"]]
    assert keys == ["k6", "k5", "k4", "k3", "k2", "k1", "k0"]
    assert "next" not in third.body


async def test_a_list_is_filtered_by_queue_phase_and_name(world: World) -> None:
    await world.commit(
        admitted("k1", job_spec(name="one")), admitted("k2", job_spec(name="two")), admitted("k3", job_spec(name="two"))
    )
    token = world.token("lab")
    async with world.gateway():

        async def keys(query: str) -> list[str]:
            return sorted(job["key"] for job in (await world.ask("GET", f"/v1/jobs?{query}", token)).body["items"])

        assert await keys("name=two") == ["k2", "k3"]
        assert await keys("name=two&phase=queued&phase=running") == ["k2", "k3"]
        assert await keys("phase=running") == []
        assert await keys("queue=research") == ["k1", "k2", "k3"]
        assert await keys("queue=elsewhere") == []
        assert (await world.ask("GET", "/v1/jobs?phase=bogus", token)).status == 422


async def test_a_tenant_sees_its_queues_and_the_nodes_of_their_pools(world: World) -> None:
    body = config_body(
        Queue(name="research", tenants=("lab",)),
        Queue(name="secret", pool="vault", tenants=("other",)),
        Queue(name="open"),
    )
    await world.commit(config_proposed(body, 1), node_seen("vault-1", labels={"tessera.io/pool": "vault"}))
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        queues = await world.ask("GET", "/v1/queues", lab)
        nodes = await world.ask("GET", "/v1/nodes", lab)
        every = await world.ask("GET", "/v1/queues", operator)
    assert [queue["name"] for queue in queues.body["items"]] == ["open", "research"]
    assert {node["pool"] for node in nodes.body["items"]} == {"default"}
    assert [queue["name"] for queue in every.body["items"]] == ["open", "research", "secret"]


async def test_an_explanation_names_what_holds_the_devices_to_whom_it_belongs_only(world: World) -> None:
    big = job_spec(role(replicas=2, gpus=8))
    await world.commit(admitted("big", big, tenant="other"))
    await world.commit(orders=(world.committed.line(),))
    await world.commit(admitted("k1"))
    holder = job_id(SHARD, "other", "big")
    owner, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        said = await world.ask("GET", f"/v1/jobs/{K1}/explain", owner)
        told = await world.ask("GET", f"/v1/jobs/{K1}/explain", operator)
    assert (said.status, said.body["reason"]["code"], said.body["position"]) == (200, "NoFit", 1)
    assert said.body["as_of"] == world.committed.state.n
    assert holder in str(told.body["notes"])
    assert holder not in str(said.body)
    assert "16 GPUs held by 1 other run" in str(said.body["notes"])


# -- ordering jobs about


async def test_an_order_for_a_job_that_is_just_becoming_known_waits_for_it(world: World) -> None:
    """A second gateway, or one that answered 202, acknowledged the submit before this one's state has the job."""
    owner = world.token("lab")
    async with world.gateway():
        asked = asyncio.create_task(world.ask("POST", f"/v1/jobs/{K1}/hold", owner))
        await asyncio.sleep(0.05)
        await world.commit(admitted("k1", tenant="lab"))
        assert (await asked).status == 202
    assert [command["kind"] for _, command in world.commands] == ["hold_job"]


async def test_cancel_hold_and_release_go_out_as_the_jobs_tenant_also_for_an_operator(world: World) -> None:
    await world.commit(admitted("k1"))
    owner, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        cancelled = await world.ask("POST", f"/v1/jobs/{K1}/cancel", operator, {"why": "maintenance", "now": True})
        held = await world.ask("POST", f"/v1/jobs/{K1}/hold", owner)
        released = await world.ask("POST", f"/v1/jobs/{K1}/release", owner, {})
    assert [(said.status, said.body["state"]) for said in (cancelled, held, released)] == [(202, "accepted")] * 3
    assert world.commands == [
        ("lab", {"kind": "cancel_job", "v": 1, "job_id": K1, "tenant": "lab", "why": "maintenance", "now": True}),
        ("lab", {"kind": "hold_job", "v": 1, "job_id": K1, "tenant": "lab"}),
        ("lab", {"kind": "release_job", "v": 1, "job_id": K1, "tenant": "lab"}),
    ]


async def test_an_ended_job_that_is_shown_no_longer_says_when_it_ended_and_where_its_records_are(
    world: World,
) -> None:
    world.ended_max = 0
    job = world.committed.run_to_its_end("k1")
    await world.publish_what_is_committed()
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("GET", f"/v1/jobs/{job}", token)
        listed = await world.ask("GET", "/v1/jobs", token)
    assert (said.status, said.code, listed.body["items"]) == (410, "NoLongerShown", [])
    reason = said.body["reasons"][0]
    assert reason["numbers"]["ended_ts"] > 0 < reason["numbers"]["ended_seconds_ago"]
    assert "ledger inspect --export" in reason["detail"]


async def test_many_jobs_are_cancelled_by_one_request_and_what_is_against_one_keeps_no_other(world: World) -> None:
    await world.commit(admitted("k1"), admitted("k2"), admitted("k1", tenant="other"))
    ended, foreign = world.committed.run_to_its_end("k3"), job_id(SHARD, "other", "k1")
    await world.publish_what_is_committed()
    jobs, lab = [K1, ended, foreign, job_id(SHARD, "lab", "k2"), K1], world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", "/v1/jobs/cancel", lab, {"jobs": jobs, "why": "enough"})
        none = await world.ask("POST", "/v1/jobs/cancel", lab, {"jobs": []})
    assert (said.status, none.status) == (202, 422)
    found = [(each["job_id"], each["state"], each.get("reason", {}).get("code")) for each in said.body["items"]]
    assert found == [
        (K1, "accepted", None),
        (ended, "refused", "AlreadyEnded"),
        (foreign, "refused", "NoSuchJob"),
        (jobs[3], "accepted", None),
    ]
    assert [command["job_id"] for _, command in world.commands] == [K1, jobs[3]]


async def test_an_ended_job_cannot_be_cancelled(world: World) -> None:
    job = world.committed.run_to_its_end("k1")
    await world.publish_what_is_committed()
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", f"/v1/jobs/{job}/cancel", token)
    assert (said.status, said.code) == (409, "AlreadyEnded")
    assert not world.commands


async def test_what_is_stored_and_not_taken_in_yet_is_cancelled_by_whoever_names_its_key(world: World) -> None:
    owner, stranger = world.token("lab"), world.token("ops")
    async with world.gateway():
        without = await world.ask("POST", f"/v1/jobs/{K1}/cancel", owner)
        foreign = await world.ask("POST", f"/v1/jobs/{K1}/cancel", stranger, headers={"Idempotency-Key": "k1"})
        own = await world.ask("POST", f"/v1/jobs/{K1}/cancel", owner, headers={"Idempotency-Key": "k1"})
    assert (without.status, foreign.status, own.status) == (404, 404, 202)
    assert [command["kind"] for _, command in world.commands] == ["cancel_job"]


# -- parts that are away


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
async def test_without_redis_views_are_a_typed_503_and_everything_else_goes_on(world: World, hangs: bool) -> None:
    await world.commit(admitted("k1"))
    token = world.token("lab")
    async with world.gateway(views_seconds=0.1):
        world.store_faults.go_away(None if hangs else Transient("Redis: away"))
        for path in ("/v1/jobs", f"/v1/jobs/{K1}", "/v1/nodes", "/v1/queues"):
            said = await world.ask("GET", path, token)
            assert (said.status, said.code, said.body["field"]) == (503, "Unavailable", "redis")
            assert said.headers["Retry-After"] == "1"
        assert (await world.ask("GET", f"/v1/jobs/{K1}/explain", token)).status == 200
        assert (await world.ask("POST", f"/v1/jobs/{K1}/cancel", token)).status == 202
        assert (await world.ask("POST", "/v1/jobs", token, submit("k2"))).status == 201
        world.store_faults.come_back()
        assert (await world.ask("GET", "/v1/jobs", token)).status == 200


async def test_views_that_were_wiped_are_no_empty_list(world: World) -> None:
    await world.commit(admitted("k1"))
    token = world.token("lab")
    async with world.gateway(views_age_seconds=0, views_seconds=0.1):
        assert len((await world.ask("GET", "/v1/jobs", token)).body["items"]) == 1
        world.views.wipe()
        assert (await world.ask("GET", "/v1/jobs", token)).status == 503
        assert (await world.ask("GET", f"/v1/jobs/{K1}", token)).status == 503


async def test_a_job_that_the_views_do_not_have_yet_is_waited_for_and_never_told_not_to_be(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(views_seconds=0.1):
        behind = world.views.copy()
        await world.commit(admitted("k1"))
        world.views.current = behind
        await asyncio.sleep(0.05)
        said = await world.ask("GET", f"/v1/jobs/{K1}", token)
        assert (said.status, said.code) == (503, "Unavailable")
        await world.publish_what_is_committed()
        assert (await world.ask("GET", f"/v1/jobs/{K1}", token)).status == 200


async def test_a_request_in_flight_is_answered_when_the_gateway_stops(world: World) -> None:
    world.answers = False
    token = world.token("lab")
    async with world.gateway(answer_seconds=0.5):
        requester = asyncio.create_task(world.ask("POST", "/v1/jobs", token, submit()))
        async with asyncio.timeout(60):
            while not world.commands:
                await asyncio.sleep(0.005)
        world.stop.set()
        said = await requester
        assert said.status == 202
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", world.port)


async def test_a_ledger_that_contradicts_itself_ends_the_gateway_for_the_process_to_halt(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        assert (await world.ask("GET", "/v1/jobs", token)).status == 200
        world.broker.store(Outgoing(subjects.ledger(SHARD), b"{}"))
        with pytest.raises(InvariantViolation):
            await world.ended()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", world.port)
