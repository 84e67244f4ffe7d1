"""The life of jobs on real processes, as a client, a subscriber and the command line see it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tessera.client.outcomes import Refused
from tessera_schemas.base import job_id
from tessera_schemas.job import CheckpointPolicy
from tessera_schemas.reasons import Code
from tests.e2e.lasting import finish, lasting
from tests.e2e.live import GPUS, SECONDS, Heard, Live, configuration, eventually, job, kind, started
from tests.e2e.platform_checks import assert_all_is_well, stored_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHOLE_LIFE = ["admitted", "allocated", "binding", "bound", "running", "succeeded", "released"]


def free_gpus(live: Live) -> int:
    return sum(sum(node.gpu_free) for node in live.state.nodes.values()) // 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def heard(live: Live) -> AsyncIterator[Heard]:
    """What the durable subscriber of `lab` is given, from before the first job on."""
    async with live.listening() as heard:
        yield heard


async def test_a_job_is_followed_from_submit_to_release_and_its_gpus_are_free_again(live: Live, heard: Heard) -> None:
    done = await live.submit(job(gpus=2))
    assert done.admitted
    events = await heard.of(done.job_id, "released")
    assert [kind(event) for event in events] == WHOLE_LIFE
    cursors = [tuple(map(int, event.id.split("."))) for event in events]
    assert cursors == sorted(set(cursors))
    await live.until_idle()
    assert live.phase(done.job_id) == "succeeded"
    assert free_gpus(live) == GPUS
    await assert_all_is_well(live)


async def test_a_gang_starts_whole_and_its_pods_are_on_devices_of_their_own(live: Live, heard: Heard) -> None:
    done = await live.submit(job(gpus=4, replicas=6, seconds=0.3))
    await live.until_ended(done.job_id)
    events = await heard.of(done.job_id, "released")
    (allocated,) = (event for event in events if kind(event) == "allocated")
    placements: list[Any] = allocated.data["placements"]  # type: ignore[assignment]
    devices = [(place["node"], device) for place in placements for device in place["devices"]]
    assert len(placements) == 6
    assert len(set(devices)) == len(devices) == 24
    await assert_all_is_well(live)


async def test_shares_of_one_gpu_are_packed_onto_it_and_never_beyond_it(live: Live) -> None:
    done = [await live.submit(lasting(f"share-{n}", gpus=0, gpu_milli=400)) for n in range(5)]
    await live.until(lambda _: all(live.phase(d.job_id) == "running" for d in done), "all shares run")
    used = [1000 - free for node in live.state.nodes.values() for free in node.gpu_free if free < 1000]
    assert sorted(used) == [400, 800, 800]
    await finish(live, *(d.job_id for d in done))
    await assert_all_is_well(live)


async def test_a_failing_job_ends_as_failed_with_its_programs_exit_code(live: Live, heard: Heard) -> None:
    done = await live.submit(job(exit_code=3))
    events = await heard.of(done.job_id, "failed")
    assert events[-1].data["exit_code"] == 3
    assert live.state.ended.get(done.job_id).exit_code == 3  # type: ignore[union-attr]
    await assert_all_is_well(live)


async def test_a_running_job_is_cancelled_and_gives_its_gpus_back(live: Live) -> None:
    done = await live.submit(job(gpus=8, seconds=600))
    await live.until_phase(done.job_id, "running")
    await live.clients["lab"].cancel(done.job_id, "changed my mind")
    await live.until_idle()
    assert live.phase(done.job_id) == "cancelled"
    assert free_gpus(live) == GPUS
    await assert_all_is_well(live)


async def test_a_queued_job_is_cancelled_without_ever_having_had_a_device(live: Live, heard: Heard) -> None:
    first = await live.submit(job(gpus=8, replicas=4, seconds=600))
    await live.until_phase(first.job_id, "running")
    queued = await live.submit(job(gpus=8))
    await live.until(lambda state: bool((j := state.jobs.get(queued.job_id)) and j.reason), "it is said why it waits")
    await live.clients["lab"].cancel(queued.job_id)
    await live.until_ended(queued.job_id)
    await live.clients["lab"].cancel(first.job_id)
    kinds = [kind(event) for event in await heard.of(queued.job_id, "cancelled")]
    assert kinds == ["admitted", "waiting", "cancelled"]
    await assert_all_is_well(live)


async def test_a_tenant_cannot_cancel_the_job_of_another(live: Live) -> None:
    done = await live.submit(job(seconds=0.5))
    await live.clients["ops"].cancel(done.job_id)
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    await assert_all_is_well(live)


async def test_one_jobs_id_leads_through_the_logs_of_all_services(live: Live) -> None:
    done = await live.submit(job("found"))
    await live.until_ended(done.job_id)
    await live.until_idle()
    await assert_all_is_well(live)
    for service in ("admission", "queueing", "scheduler", "binder", "reclamation", "projection"):
        said = [json.loads(line) for line in log_of(live, service) if done.job_id in line]
        assert said, service
        assert all(line["level"] == "info" for line in said), said


def log_of(live: Live, service: str) -> list[str]:
    lines = [line for path in (live.home / "logs").glob("*.log") for line in path.read_text().splitlines()]
    return [line for line in lines if f'"service":"{service}"' in line]


async def test_the_same_key_is_the_same_job_and_with_another_spec_a_conflict(live: Live) -> None:
    first = await live.submit(job("once"), key="nightly")
    again = await live.submit(job("once"), key="nightly")
    assert (again.job_id, again.number, again.state) == (first.job_id, first.number, "existing")
    assert (first.state, first.number > 0) == ("queued", True)
    await live.until_ended(first.job_id)
    with pytest.raises(Refused) as refused:
        await live.submit(job("twice"), key="nightly")
    assert [reason.code for reason in refused.value.reasons] == [Code.IDEMPOTENCY_CONFLICT]
    assert live.state.ended.get(first.job_id).name == "once"  # type: ignore[union-attr]
    await assert_all_is_well(live)


async def test_a_job_that_is_refused_says_all_reasons_at_once(live: Live) -> None:
    with pytest.raises(Refused) as refused:
        await live.submit(job(queue="nowhere", priority_class="royal"))
    assert {reason.code for reason in refused.value.reasons} == {Code.NO_SUCH_QUEUE, Code.NO_SUCH_PRIORITY_CLASS}


async def test_submit_and_wait_ends_with_the_jobs_own_end_as_exit_code(live: Live, tmp_path: Path) -> None:
    async def wait(name: str, spec: dict[str, Any], *words: str) -> int:
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(spec))
        live.acknowledged.append(("lab", name))
        said = await live.command("submit", "-f", str(file), "--key", name, "--wait", "--as", "lab", *words)
        return said.code

    async def cancelled() -> int:
        waiting = asyncio.ensure_future(wait("cancelled", plain("cancelled", seconds=600)))
        await live.until(lambda state: any(j.name == "cancelled" for j in state.jobs.values()), "it is there")
        (mine,) = (j.job_id for j in live.state.jobs.values() if j.name == "cancelled")
        await live.until_phase(mine, "running")
        await live.clients["lab"].cancel(mine)
        return await waiting

    codes = await asyncio.gather(
        wait("well", plain("well")),
        wait("failing", plain("failing", exit_code=1)),
        wait("refused", plain("refused") | {"queue": "nowhere"}),
        wait("limited", plain("limited", seconds=600) | {"time_limit": "1s"}),
        cancelled(),
    )
    assert codes == [0, 1, 6, 7, 8]
    await assert_all_is_well(live)


async def test_waiting_no_longer_than_asked_leaves_the_job_running(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "patience.yaml"
    file.write_text(yaml.safe_dump(plain("patience", seconds=600)))
    words = ("--key", "patience", "--wait", "--timeout", "0.2", "--as", "lab")
    said = await live.command("submit", "-f", str(file), *words)
    live.acknowledged.append(("lab", "patience"))
    assert (said.code, "goes on" in said.err) == (10, True)
    await live.clients["lab"].cancel(job_id(live.platform.shard, "lab", "patience"))
    await assert_all_is_well(live)


def plain(name: str, *, seconds: float = 0.1, exit_code: int = 0) -> dict[str, Any]:
    """A job as a file says it."""
    return {
        "name": name,
        "queue": "default",
        "resources": {"cpu": 1, "memory": "1Gi", "gpus": 1},
        "ttl_after_finished": "0s",
        "termination_grace": "1s",
        "template": {
            "image": "train:1",
            "annotations": {
                "tessera.io/simulate-seconds": str(seconds),
                "tessera.io/simulate-exit-code": str(exit_code),
            },
        },
    }


async def test_the_command_line_shows_what_is_there_as_json_of_a_known_shape(live: Live) -> None:
    notice = CheckpointPolicy(interval_seconds=600, notice_seconds=600)
    done = await live.submit(job("shown", gpus=2, seconds=600, checkpoint=notice))
    await live.until_phase(done.job_id, "running")
    async with live.store() as store:
        while await store.cursor() < (known := live.state.n):
            await asyncio.sleep(0.02)
    ls, get, nodes, explain, events = await asyncio.gather(
        live.command("ls", "-o", "json", "--phase", "running"),
        live.command("get", "shown", "-o", "json"),
        live.command("nodes", "-o", "json"),
        live.command("explain", "shown", "-o", "json"),
        live.command("events", "--job", done.job_id, "-o", "json"),
    )
    assert [item["job_id"] for item in ls.json["items"]] == [done.job_id]
    end = await live.ledger_end()  # a node may have been reported again between these answers
    assert all(known <= answer.json["as_of"] <= end for answer in (ls, nodes, get))
    assert (get.json["phase"], get.json["gpu_milli"], get.json["key"]) == ("running", 2000, done.key)
    free = [sum(node["gpu_free"]) for node in nodes.json["items"]]
    assert (len(free), sum(free)) == (4, (GPUS - 2) * 1000)
    assert explain.json["phase"] == "running"
    assert explain.json["story"]
    assert [event["type"].split(".")[3] for event in events.json["items"]] == WHOLE_LIFE[:5]
    cancel = await live.command("cancel", done.job_id, "--as", "lab", "--why", "seen enough", "--now")
    assert (cancel.code, done.job_id in cancel.out) == (0, True)
    await live.until_ended(done.job_id)
    await assert_all_is_well(live)
    known, events_before = live.state.n, len(await stored_events(live))
    replay, inspect, ended, missing, gone = await asyncio.gather(
        live.command("replay", "--verify", "-o", "json"),
        live.command("ledger", "inspect", "-o", "json", "--last", "3"),
        live.command("cancel", done.job_id),
        live.command("get", "nobody-knows-me"),
        live.command("get", done.job_id, "-o", "json"),
    )
    assert gone.json["phase"] == "cancelled"
    assert gone.json["ran_on"] == [placement["node"] for placement in get.json["placements"]]
    assert (replay.code, replay.json["ok"]) == (0, True)
    assert known <= replay.json["recomputed"] <= await live.ledger_end()  # a node may be reported again meanwhile
    assert replay.json["not_recomputed"] == 0
    assert events_before <= replay.json["events"] <= len(await stored_events(live))
    assert inspect.err == ""
    assert (inspect.code, len(inspect.json["items"])) == (0, 3)
    assert known <= inspect.json["as_of"] <= await live.ledger_end()
    assert (ended.code, missing.code) == (4, 3)
    assert "has ended (cancelled)" in ended.err
    assert "\n" not in missing.err.strip()


async def test_the_second_of_two_operators_with_one_configuration_is_told_to_look_again(
    live: Live, tmp_path: Path
) -> None:
    end = await live.ledger_end()
    await live.until(lambda state: state.n >= end, "what the tests before committed is folded")
    version = live.state.config.version

    def limit(jobs: int) -> str:
        file = tmp_path / f"limit-{jobs}.yaml"
        body = configuration().model_dump(mode="json", exclude_defaults=True)
        body["tenants"][0]["limits"] = {"jobs": jobs}
        file.write_text(yaml.safe_dump(body))
        return str(file)

    async with asked_to_confirm(live, "apply", "-f", limit(700)) as (shown, confirm):
        assert "+    jobs: 700" in shown
        first = await live.command("apply", "-f", limit(800), "--yes")
        assert (first.code, f"version {version + 1} is in force" in first.out) == (0, True)
        code, err = await confirm()
    assert code == 4
    assert f"version {version + 1} was applied meanwhile" in err
    await live.until(lambda state: state.config.version > version, "the first configuration is in force")
    assert live.state.config.version == version + 1
    assert live.state.tree.tenants["lab"].limits.jobs == 800
    await live.configure(configuration(), expected_version=version + 1)
    await assert_all_is_well(live)


async def test_the_subscriber_got_exactly_its_tenants_events_once_and_in_order(live: Live, heard: Heard) -> None:
    last = await live.submit(job("last"))
    await heard.of(last.job_id, "released")
    await assert_all_is_well(live)
    stored = [json.loads(data) for subject, _, data in await stored_events(live) if subject.split(".")[2] == "lab"]
    await eventually(lambda: len(heard.events) >= len(stored), "the subscriber got all of them")
    assert [event.id for event in heard.events] == [event["id"] for event in stored]
    assert {event.tenant for event in heard.events} == {"lab"}
    assert len(stored) > 100


@asynccontextmanager
async def asked_to_confirm(
    live: Live, *words: str
) -> AsyncIterator[tuple[str, Callable[[], Coroutine[Any, Any, tuple[int | None, str]]]]]:
    """A command at a terminal, up to its question; then what it showed, and a way to say yes and see how it ended."""
    keyboard, terminal = os.openpty()
    process = await started(*words, stdin=terminal, environment={"TESSERA_HOME": str(live.home)})
    os.close(terminal)
    assert process.stdout is not None

    async def confirm() -> tuple[int | None, str]:
        os.write(keyboard, b"y\n")
        _, err = await asyncio.wait_for(process.communicate(), SECONDS)
        return process.returncode, err.decode()

    try:
        async with asyncio.timeout(SECONDS):
            shown = await process.stdout.readuntil(b"Apply this?")
        yield shown.decode(), confirm
    finally:
        os.close(keyboard)
        if process.returncode is None:
            process.kill()
            await process.wait()
