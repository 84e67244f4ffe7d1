"""The gateway as the command speaks to it, against a small HTTP server that answers what it is told to."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.jobs.events import NODE_TYPES
from tessera.client.connect.api import events_by_api, reason_of
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Refused, Submitted
from tessera.client.sending.sdk import Tessera
from tessera.client.sending.sending_by_api import cancel_by_api
from tessera.client.sending.submitting import wait_by_views
from tessera.kernel.errors import Transient
from tessera_schemas.events import CloudEvent
from tests.unit.client.small_gateway import Gateway, Json, job

AS_OF = {"as_of": 7}
SICK = {"source": "dcgm", "since_ts": 1, "ailment": {"cause": "gpu_lost", "evidence": "XID 79"}}
WARM = {"source": "dcgm", "since_ts": 1, "ailment": {"cause": "gpu_throttled"}}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


def problem(code: str, **more: Any) -> Json:
    return {"code": code, "sentence": f"{code}: so it is", "reasons": [{"code": code, "detail": "so it is"}]} | more


@pytest.mark.parametrize(
    ("status", "code", "error", "text"),
    [
        (401, "Unauthorized", Failure, "the token is not accepted"),
        (404, "NoSuchJob", Failure, "job abc: there is none"),
        (409, "AlreadyEnded", Failure, "AlreadyEnded"),
        (422, "NotAllowed", Refused, "NotAllowed"),
        (429, "LimitExceeded", Refused, "LimitExceeded"),
        (503, "Unavailable", Transient, "Unavailable"),
    ],
)
def test_a_refusal_is_told_as_over_nats(
    gateway: Gateway, status: int, code: str, error: type[Exception], text: str
) -> None:
    gateway.answers["/v1/jobs/abc"] = status, problem(code)
    with pytest.raises(error, match=text):
        asyncio.run(gateway.api.get("/v1/jobs/abc"))


@pytest.mark.parametrize("code", ["RateLimited", "BacklogFull"])
@pytest.mark.parametrize("seconds", [0.01, 61])
def test_who_asked_too_often_asks_again_when_the_gateway_says_so(gateway: Gateway, seconds: float, code: str) -> None:
    """Cancelling 200 jobs ended after the burst of its token, with 122 of them left."""

    def busy(_: object) -> Json:
        if len(gateway.asked) == 3:
            gateway.answers["/v1/jobs/abc"] = 200, {"job": 1}
        return problem(code, retry_after=seconds)

    gateway.answers["/v1/jobs/abc"] = 429, busy
    if seconds > 60:
        with pytest.raises(Transient, match=code):
            asyncio.run(gateway.api.get("/v1/jobs/abc"))
    else:
        assert asyncio.run(gateway.api.get("/v1/jobs/abc")) == {"job": 1}
    assert len(gateway.asked) == (1 if seconds > 60 else 4)


def test_a_stream_and_a_log_that_are_asked_for_too_early_are_asked_for_again(gateway: Gateway) -> None:
    def busy(path: str, whole: bytes) -> Callable[[object], Json]:
        def answer(_: object) -> Json:
            gateway.answers[path] = 200, whole
            return problem("RateLimited", retry_after=0.01)

        return answer

    gateway.answers["/v1/events"] = 429, busy("/v1/events", b'data: {"id": "1.0"}\n\nevent: complete\ndata: {}\n\n')
    gateway.answers["/v1/jobs/abc/logs"] = 429, busy("/v1/jobs/abc/logs", b"line\n")

    async def read() -> tuple[list[str], bytes]:
        events = [event["id"] async for event in gateway.api.events(0)]
        return events, b"".join([piece async for piece in gateway.api.pieces("/v1/jobs/abc/logs")])

    assert asyncio.run(read()) == (["1.0"], b"line\n")


def test_many_jobs_are_cancelled_by_one_request_for_each_thousand_when_the_gateway_takes_them(gateway: Gateway) -> None:
    jobs = [f"{number:04}".ljust(20, "a") for number in range(1200)]
    reason = {"code": "AlreadyEnded", "detail": "succeeded"}

    def taken(_: object) -> Json:
        gateway.answers["/v1/jobs/cancel"] = 202, taken
        if len(gateway.sent) == 1:
            return problem("RateLimited", retry_after=0.01)
        first = json.loads(gateway.sent[-1])["jobs"][0]
        return {"items": [{"job_id": first, "state": "refused", "reason": reason}]}

    gateway.answers["/v1/jobs/cancel"] = 429, taken
    failed = asyncio.run(cancel_by_api(gateway.api, jobs, "enough"))
    assert [(job, why.code) for job, why in failed] == [(jobs[0], "AlreadyEnded"), (jobs[1000], "AlreadyEnded")]
    assert [json.loads(body)["jobs"] for body in gateway.sent] == [jobs[:1000], jobs[:1000], jobs[1000:]]


def test_what_is_no_json_of_ours_is_still_a_sentence(gateway: Gateway) -> None:
    gateway.answers["/v1/jobs"] = 502, b"<html>bad gateway</html>"
    with pytest.raises(Transient, match="Bad Gateway"):
        asyncio.run(gateway.api.get("/v1/jobs"))


def test_nobody_there_is_transient(gateway: Gateway) -> None:
    gateway.server.shutdown()
    gateway.server.server_close()
    with pytest.raises(Transient, match=gateway.url):
        asyncio.run(gateway.api.get("/v1/jobs"))


def test_a_token_does_not_follow_a_redirect(gateway: Gateway) -> None:
    gateway.answers["/v1/jobs"] = 302, f"{gateway.url}/elsewhere"
    with pytest.raises(Failure):
        asyncio.run(gateway.api.get("/v1/jobs"))
    assert [path for path, _, _ in gateway.asked] == ["/v1/jobs"]
    assert gateway.asked[0][2] == "Bearer tessera_a_b"


def test_all_pages_are_read_and_ordered_as_from_redis(gateway: Gateway) -> None:
    pages = {"": [job("new", ts=3), job("done", "succeeded", ts=2)], "more": [job("old"), job("pod", "refused")]}

    def page(query: dict[str, list[str]]) -> Json:
        at = query.get("cursor", [""])[0]
        wanted = [one for one in pages[at] if query.get("phase", [one["phase"]])[0] == one["phase"]]
        return {"as_of": 9 if at else 8, "items": wanted} | ({} if at else {"next": "more"})

    gateway.answers["/v1/jobs"] = 200, page
    views = ShardViews(gateway.api)

    async def read() -> tuple[list[str], int]:
        return [one.name for one in await views.all_work()], await views.as_of()

    assert asyncio.run(read()) == (["old", "new", "pod", "done"], 8)
    assert [one.name for one in asyncio.run(views.jobs())] == ["old", "new", "done"]


def test_a_job_is_found_by_its_id_and_by_its_name(gateway: Gateway) -> None:
    known = job("train")
    gateway.answers["/v1/jobs"] = 200, AS_OF | {"items": [known]}
    gateway.answers[f"/v1/jobs/{known['job_id']}"] = 200, AS_OF | {"job": known}
    gateway.answers[f"/v1/jobs/{'b' * 20}"] = 404, problem("NoSuchJob")
    views = ShardViews(gateway.api)
    for named in ("train", known["job_id"], known["job_id"][:8]):
        assert asyncio.run(views.work(named)).name == "train"
    with pytest.raises(Failure) as raised:
        asyncio.run(views.work("b" * 20))
    assert raised.value.code is Exit.NOT_FOUND


def test_events_come_in_order_and_the_end_of_a_stream_is_told(gateway: Gateway) -> None:
    lines = ["retry: 1000", "", ": as of 3", "id: 3", "", 'data: {"id": "4.0"}', "id: 4", "", "event: gap"]
    lines += ['data: {"code": "EventsGone"}', "", 'data: {"id": "5.0"}', "", "event: end", 'data: {"sentence": "bye"}']
    gateway.answers["/v1/events"] = 200, "\n".join([*lines, "", ""]).encode()
    seen: list[str] = []

    async def read() -> None:
        async for event in gateway.api.events(0, job="abc"):
            seen.append(event["id"])

    with pytest.raises(Transient, match="bye"):
        asyncio.run(read())
    assert seen == ["4.0", "5.0"]
    assert gateway.asked[0][1] == {"job": ["abc"], "after": ["0"]}


async def test_stored_events_are_all_there_or_the_command_says_that_they_are_not(gateway: Gateway) -> None:
    envelope = {"specversion": "1.0", "source": "s", "type": "t", "subject": "s", "time": "now", "dataschema": "d"}
    event = json.dumps({**envelope, "id": "4.0", "tenant": "lab", "sequence": "4", "data": {}})
    whole = f"id: 4\ndata: {event}\n\n"
    gateway.answers["/v1/events"] = 200, (whole + 'event: complete\ndata: {"as_of": 4}\n\n').encode()
    assert [event.id async for event in events_by_api(gateway.api, "abc")] == ["4.0"]
    assert gateway.asked[0][1] == {"job": ["abc"], "after": ["0"], "follow": ["false"]}
    gateway.answers["/v1/events"] = 200, whole.encode()
    with pytest.raises(Transient, match="the connection was lost"):
        [event async for event in events_by_api(gateway.api)]


async def test_a_stream_that_is_followed_comes_back_with_the_last_place_and_says_so_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.client.connect.api.LOST_SECONDS", 0.01)
    said, seen = list[str](), list[str]()

    def stream(query: dict[str, list[str]]) -> bytes:
        after = int(query["after"][0])
        lines = [f"id: {after + 1}", f'data: {{"id": "{after + 1}.0"}}', "", f": as of {after + 2}", f"id: {after + 2}"]
        return "\n".join([*lines, "", "", ""]).encode()

    def away(query: dict[str, list[str]]) -> Json:
        if len(gateway.asked) == 4:
            gateway.answers["/v1/events"] = 200, stream
        return problem("Unavailable")

    gateway.answers["/v1/events"] = 200, stream
    async for event in gateway.api.events(0, said.append):
        seen.append(event["id"])
        if len(seen) == 2:
            gateway.answers["/v1/events"] = 503, away
        if len(seen) == 3:
            break
    assert seen == ["1.0", "3.0", "5.0"]
    assert [query["after"] for _, query, _ in gateway.asked] == [["0"], ["2"], ["4"], ["4"], ["4"]]
    assert len(said) == 2
    assert "it goes on from there" in said[0]


async def test_waiting_passes_over_an_earlier_job_of_the_same_key(gateway: Gateway) -> None:
    """Its views are there still when the new job is in the ledger and not in the views yet."""
    where = Where("main", login=ApiLogin(gateway.url, "tessera_a_b"))
    looks = [("succeeded", 3), ("succeeded", 3), ("running", 9), ("failed", 9)] * 2

    def answer(_: Any) -> Any:
        phase, number = looks.pop(0)
        return AS_OF | {"job": job("a") | {"phase": phase, "number": number}}

    gateway.answers[f"/v1/jobs/{'a' * 20}"] = (200, answer)
    assert await wait_by_views(where, "a" * 20, 30, 9) == ("failed", None)
    async with Tessera.at(where, None) as tessera:
        ended = await tessera.wait(Submitted("a" * 20, True, "k1", number=9), 30)
    assert (ended.phase, ended.number) == ("failed", 9)


async def test_waiting_ends_once_the_token_is_taken_back(gateway: Gateway) -> None:
    where = Where("main", login=ApiLogin(gateway.url, "tessera_a_b"))
    path = f"/v1/jobs/{'a' * 20}"

    def answer(_: Any) -> Any:
        gateway.answers[path] = (401, problem("Unauthorized"))
        return AS_OF | {"job": job("a")}

    gateway.answers[path] = (200, answer)
    with pytest.raises(Failure, match="the token is not accepted"):
        await wait_by_views(where, "a" * 20, 30)
    async with Tessera.at(where, None) as tessera:
        with pytest.raises(Failure, match="the token is not accepted"):
            await tessera.wait("a" * 20, 1)


async def test_a_date_of_a_job_file_is_sent_as_over_nats(gateway: Gateway) -> None:
    gateway.answers["/v1/jobs"] = (201, {"job_id": "a" * 20, "state": "queued"})
    env = files.parse_yaml("DAY: 2030-01-31", "env")
    job = {"name": "a", "queue": "q", "cpu": 1, "memory": "1Gi", "template": {"image": "x", "env": env}}
    async with Tessera.at(Where("main", login=ApiLogin(gateway.url, "tessera_a_b")), None) as tessera:
        await tessera.submit(job, "key")
    assert json.loads(gateway.sent[0])["spec"]["roles"][0]["template"]["env"] == {"DAY": "2030-01-31"}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("health-changed", {"ailments": [SICK, WARM]}, "gpu_lost (dcgm): XID 79; gpu_throttled (dcgm)"),
        ("health-changed", {}, ""),
        ("drained", {"why": "new fans"}, "new fans"),
        ("fence-ended", {"outcome": "failed", "detail": "no power"}, "failed: no power"),
    ],
)
def test_an_event_of_a_node_says_why_in_a_line(kind: str, data: Json, words: str) -> None:
    event = CloudEvent.model_construct(type=f"io.tessera.node.{kind}.v1", data={"node": "gpu-7", **data})
    assert reason_of(event) == words


def test_events_of_nodes_are_asked_for_by_their_types_and_name_the_node(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_API", gateway.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    envelope = {
        "specversion": "1.0",
        "source": "s",
        "subject": "none",
        "time": "2026-11-27T02:03:04Z",
        "dataschema": "d",
    }
    event = {**envelope, "id": "4.0", "tenant": "operator", "sequence": "4", "type": "io.tessera.node.drained.v1"}
    line = json.dumps(event | {"data": {"node": "gpu-7", "why": "new fans"}})
    stored = f'id: 4\ndata: {line}\n\nid: 4\nevent: complete\ndata: {{"as_of": 4}}\n\n'
    gateway.answers["/v1/events"] = 200, stored.encode()
    found = CliRunner().invoke(app, ["events", "--nodes"])
    assert found.exit_code == 0, found.output
    assert "gpu-7" in found.output
    assert "new fans" in found.output
    assert sorted(gateway.asked[-1][1]["type"]) == sorted(NODE_TYPES)
    assert len(NODE_TYPES) == 5
    assert CliRunner().invoke(app, ["events", "--nodes", "--tenant", "lab"]).exit_code != 0
