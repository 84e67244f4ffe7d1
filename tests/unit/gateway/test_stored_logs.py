"""Logs of pods that are gone: collected as runs end, kept within bounds, served to their tenant alone."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tessera.gateway.stored_logs import collecting, outages
from tessera.gateway.stored_logs.bounds import FILE_BYTES
from tessera.gateway.stored_logs.collecting import LogCollector, NewestPart
from tessera.gateway.stored_logs.progress import Progress
from tessera.gateway.stored_logs.stores import (
    DirectoryLogStore,
    LogName,
    log_key,
    older_log_key,
    open_store,
    read_log_key,
)
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError, Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ports import ApiError
from tessera.kernel.tasks import worklist
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import job_id, run_id
from tessera_schemas.facts import CancelRequested, JobAdmitted, PodsMade, RunAbsent, RunEnded, RunLost, RunStarted
from tessera_schemas.job import Role
from tessera_schemas.ledger import Released
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tests.builders import SHARD, admitted, job_spec, role
from tests.ledgers import Committed
from tests.unit.gateway.gateway_world import SECONDS, Kubelet, Said, World

JOB = job_id(SHARD, "lab", "k1")
RUN = f"{JOB}-1"
PATH = f"/v1/jobs/{JOB}/logs"
ADOPTED = Adopted(owner_kind="Pod", owner_name="a", owner_uid="u", uids=("uid-0",), group="pod/lab/u")


@pytest.fixture
def kubelet(world: World) -> Kubelet:
    world.cluster = Kubelet()
    return world.cluster


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


async def run_begins(world: World, *roles: Role, **spec: Any) -> str:
    """A job of lab runs; returns the tenant's token."""
    await world.commit(admitted("k1", job_spec(*roles, **spec)))
    assert world.committed.start(JOB, "k1") == RUN
    await world.publish_what_is_committed()
    return world.token("lab")


async def begins_again(world: World) -> str:
    """The job's first run is lost, and a second one runs; returns its id."""
    await run_begins(world)
    second = run_id(JOB, 2)
    await world.commit(RunLost(kind="run_lost", run_id=RUN, reason=Reason(code=Code.NODE_LOST)))
    await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
    await world.commit(PodsMade(kind="pods_made", run_id=second, uids=("uid-2",)))
    await world.commit(RunStarted(kind="run_started", run_id=second))
    return second


async def test_a_log_is_read_once_also_by_whoever_collects_next(world: World, kubelet: Kubelet, kept: Path) -> None:
    await run_begins(world, role(replicas=2))
    kubelet.texts = {f"{RUN}-{rank}": b"one\n" for rank in range(2)}
    async with world.gateway(logs_store=str(kept)):
        await run_ends(world)
        await until(lambda: len(stored(kept)) == 2)
        await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
        await asyncio.sleep(0.3)
    async with world.gateway(logs_store=str(kept)):
        await asyncio.sleep(0.3)
    assert sorted(kubelet.asked) == [f"lab/{RUN}-0", f"lab/{RUN}-1"]


async def run_ends(world: World) -> None:
    await world.commit(RunEnded(kind="run_ended", run_id=RUN))


async def text(world: World, token: str, query: str = "") -> str | Said:
    async with aiohttp.ClientSession() as http:
        answer = await http.get(f"{world.url}{PATH}{query}", headers={"Authorization": f"Bearer {token}"})
        return await answer.text() if answer.status == 200 else Said(answer.status, {}, await answer.json())


def stored(kept: Path) -> dict[str, bytes]:
    return {str(path.relative_to(kept)): path.read_bytes() for path in kept.rglob("*.log")}


async def test_a_log_is_read_as_before_once_its_pod_is_gone(world: World, kubelet: Kubelet, kept: Path) -> None:
    token, stranger = await run_begins(world), world.token("ops")
    kubelet.texts[f"{RUN}-0"] = b"one\ntwo\n"
    async with world.gateway(logs_store=str(kept)):
        await run_ends(world)
        await until(lambda: bool(stored(kept)))
        kubelet.texts.clear()
        await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
        assert await text(world, token) == "one\ntwo\nlast words\n"
        assert await text(world, token, "?tail=1&attempt=1&follow=true") == "last words\n"
        said = await text(world, token, "?since_seconds=5")
        assert isinstance(said, Said)
        assert (said.status, said.body["field"]) == (422, "since_seconds")
        other = await text(world, stranger)
        assert isinstance(other, Said)
        assert other.status == 404
        assert world.measured("tessera_gateway_logs_collected_total", outcome="collected") == 1
    assert list(stored(kept)) == [f"{SHARD}/lab/{JOB}-1-0.log"]


async def test_a_surplus_pods_log_is_read_after_the_jobs_end_and_a_rank_that_never_was_is_refused(
    world: World, kubelet: Kubelet, kept: Path
) -> None:
    token = await run_begins(world)
    kubelet.texts[f"{RUN}-0"] = b"one\n"
    async with world.gateway(logs_store=str(kept)):
        never = await text(world, token, "?rank=7")
        assert isinstance(never, Said)
        assert (never.status, never.code, never.body["field"]) == (422, "InvalidField", "rank")
        assert "those of its gang are 0 to 0" in never.body["sentence"]
        await DirectoryLogStore(kept).put(
            log_key(SHARD, LogName("lab", JOB, 1, 1)), b"surplus\n"
        )  # as a run that grew has it
        await run_ends(world)
        await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
        assert await text(world, token, "?rank=1") == "surplus\n"


async def test_a_run_that_is_stopped_is_followed_to_its_last_words(world: World, kubelet: Kubelet, kept: Path) -> None:
    await run_begins(world)
    kubelet.texts[f"{RUN}-0"], kubelet.open = b"working\n", {f"{RUN}-0"}
    async with world.gateway(logs_store=str(kept)):
        await world.commit(CancelRequested(kind="cancel_requested", job_id=JOB, tenant="lab"))
        assert world.committed.state.runs.get(RUN).revoked
        await asyncio.wait_for(kubelet.reading.wait(), SECONDS)
        assert not stored(kept)
        kubelet.open.clear()
        await until(lambda: bool(stored(kept)))
    assert stored(kept)[f"{SHARD}/lab/{JOB}-1-0.log"] == b"working\nlast words\n"


@pytest.mark.parametrize("began", ["before the gateway", "while it is up"])
@pytest.mark.parametrize("released", ["while it is followed", "after"])
async def test_a_stored_log_stands_though_its_node_has_less_of_it_later(
    world: World, kubelet: Kubelet, kept: Path, released: str, began: str
) -> None:
    """A kubelet that has removed the containers of a pod still answers for it until the pod's object is gone."""
    if began == "before the gateway":
        await run_begins(world)
    kubelet.texts[f"{RUN}-0"], kubelet.open = b"working\n", {f"{RUN}-0"}
    absent = RunAbsent(kind="run_absent", run_id=RUN)
    async with world.gateway(logs_store=str(kept)):
        if began == "while it is up":
            await asyncio.sleep(0.3)
            await run_begins(world)
        await world.commit(CancelRequested(kind="cancel_requested", job_id=JOB, tenant="lab"))
        await asyncio.wait_for(kubelet.reading.wait(), SECONDS)
        if released == "while it is followed":
            await world.commit(absent)
            await asyncio.sleep(0.3)
        kubelet.texts[f"{RUN}-0"] = b""
        kubelet.open.clear()
        await until(lambda: bool(stored(kept)))
        if released == "after":
            await world.commit(absent)
        await world.commit(RunEnded(kind="run_ended", run_id=RUN))  # as told by a binder that began anew
        await asyncio.sleep(0.3)
    assert stored(kept)[f"{SHARD}/lab/{JOB}-1-0.log"] == b"working\nlast words\n"


async def test_what_ended_while_no_gateway_was_up_is_caught_up_with(world: World, kubelet: Kubelet, kept: Path) -> None:
    world.committed.ts = world.clock.now_ms() - 60_000
    await run_begins(world)
    kubelet.texts[f"{RUN}-0"] = b"one\n"
    await run_ends(world)
    await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
    assert world.committed.state.ended.get(JOB)
    async with world.gateway(logs_store=str(kept)):
        await until(lambda: bool(stored(kept)))
    assert list(stored(kept).values()) == [b"one\n"]


async def test_what_was_collected_is_not_asked_for_by_the_next_gateway(
    world: World, kubelet: Kubelet, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "PROGRESS_SECONDS", 0.02)
    facts = admitted("k1"), admitted("k2")
    await begin(world, *facts)
    for run in (f"{fact.job_id}-1" for fact in facts):  # their pods are gone before anybody can read them
        kubelet.asked.clear()
        async with world.gateway(logs_store=str(kept)):
            await world.commit(RunEnded(kind="run_ended", run_id=run))
            await until(lambda: bool(kubelet.asked))
            await world.commit(RunAbsent(kind="run_absent", run_id=run))
            await until(lambda: collected_until(kept) == world.committed.state.ts)
        assert set(kubelet.asked) == {f"lab/{run}-0"}


def collected_until(kept: Path) -> int:
    mark = kept / SHARD / ".collected-until"
    return int(mark.read_text()) if mark.exists() else 0


async def test_progress_waits_for_what_is_not_collected_yet(kept: Path) -> None:
    store = DirectoryLogStore(kept)
    progress = Progress(store, SHARD)
    assert await progress.begin(0) == 0
    progress.named("a-1", n=5, ts=500)
    progress.named("b-1", n=6, ts=600)
    progress.collected("b-1", n=6)
    await progress.write(900)
    assert collected_until(kept) == 500
    progress.named("a-1", n=8, ts=800)  # again, while it is being collected
    progress.collected("a-1", n=7)
    await progress.write(900)
    assert collected_until(kept) == 800
    progress.collected("a-1", n=8)
    await progress.write(950)
    assert await Progress(store, SHARD).begin(1000) == collected_until(kept) == 950


@pytest.mark.parametrize("written", [b"yesterday", b"1001"], ids=["unreadable", "ahead-of-the-ledger"])
async def test_progress_that_cannot_be_is_none(kept: Path, written: bytes) -> None:
    """One ahead of the ledger, as of another one, would leave all logs out until the ledger's time has reached it."""
    store = DirectoryLogStore(kept)
    await store.put(f"{SHARD}/.collected-until", written)
    progress = Progress(store, SHARD)
    assert await progress.begin(1000) == 0
    await progress.write(1000)
    assert collected_until(kept) == 1000


@pytest.mark.parametrize("began", ["before the gateway", "while it is up"])
async def test_nobody_asks_for_logs_of_users_own_pods(world: World, kubelet: Kubelet, kept: Path, began: str) -> None:
    facts = admitted("k1").model_copy(update={"adopted": ADOPTED}), admitted("k2"), admitted("k3")
    ours = [f"{fact.job_id}-1" for fact in facts[1:]]
    kubelet.texts |= {f"{run}-0": b"one\n" for run in ours}
    if began == "before the gateway":
        await begin(world, *facts)
    async with world.gateway(logs_store=str(kept)):
        if began == "while it is up":
            await begin(world, *facts)
        await world.commit(RunEnded(kind="run_ended", run_id=ours[0]))
        await until(lambda: len(stored(kept)) == 1)
        await run_ends(world)
        await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
        await world.commit(RunEnded(kind="run_ended", run_id=ours[1]))
        await until(lambda: len(stored(kept)) == 2)
    assert kubelet.asked == [f"lab/{run}-0" for run in ours]


async def test_nothing_is_kept_of_users_own_runs_whose_pods_ended_one_by_one(kept: Path) -> None:
    committed = Committed().begin()
    committed.commit(admitted("k1").model_copy(update={"adopted": ADOPTED}))
    clock = SystemClock()
    collector = LogCollector(Kubelet(), Mock(), committed.state, SHARD, clock, Mock(), 1 << 20, 7)  # type: ignore[arg-type]
    collector._worklist = Worklist(collector._collect, clock, 1)
    placed = committed.commit(orders=(committed.line(),))
    await collector.on_ledger([Entry(placed, b"")])
    part = Released(kind="released", run_id=RUN, ranks=(0,))
    await collector.on_ledger([Entry(placed.model_copy(update={"records": (part,)}), b"")])
    assert (collector._ranks, collector._users_own) == ({}, {RUN})


async def begin(world: World, *facts: JobAdmitted) -> None:
    for fact in facts:
        await world.commit(fact)
        world.committed.start(fact.job_id, fact.key)
    await world.publish_what_is_committed()


async def test_a_node_that_does_not_answer_is_asked_again(world: World, kubelet: Kubelet, kept: Path) -> None:
    await run_begins(world)
    kubelet.texts[f"{RUN}-0"] = b"one\n"
    kubelet.errors = [ApiError(500, "InternalError", "dial tcp"), Transient("cut")]
    async with world.gateway(logs_store=str(kept)):
        await run_ends(world)
        await until(lambda: bool(stored(kept)))
    assert len(kubelet.asked) == 3


async def test_a_namespace_without_our_right_is_told_once_and_its_runs_are_not_tried_again_and_again(
    world: World, kubelet: Kubelet, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklist, "LONGEST_RETRY_SECONDS", 0.01)
    facts = [admitted(f"k{number}") for number in range(3)]
    await begin(world, *facts)
    kubelet.texts = {f"{fact.job_id}-1-0": b"one\n" for fact in facts}
    tries = collecting.REFUSED_TRIES_MAX + 1
    kubelet.errors = [ApiError(403, "Forbidden", "pods/log in the namespace lab")] * (tries + 1)
    with capture_logs() as said:
        async with world.gateway(logs_store=str(kept)):
            for fact, asked in zip(facts, (tries, tries + 1, tries + 2), strict=True):
                await world.commit(RunEnded(kind="run_ended", run_id=f"{fact.job_id}-1"))
                await until(lambda asked=asked: len(kubelet.asked) >= asked)  # type: ignore[misc]
            await until(lambda: bool(stored(kept)))
    assert len(kubelet.asked) == tries + 2
    assert [line["tenant"] for line in said if line["event"] == "log_not_collected"] == ["lab"]


@pytest.mark.parametrize("waiting_max", [4096, 1])
@pytest.mark.parametrize(
    "away",
    [
        Transient("is no address of an API server"),
        ApiError(401, "Unauthorized", ""),
        ApiError(503, "", "no upstream"),
        "store",
    ],
    ids=str,
)
async def test_an_outage_is_told_once_and_no_run_is_tried_while_it_lasts(
    world: World,
    kubelet: Kubelet,
    kept: Path,
    away: Exception | str,
    waiting_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outages, "FIRST_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(outages, "LONGEST_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(collecting, "WAITING_MAX", waiting_max)
    facts = [admitted(f"k{number}") for number in range(8)]
    await begin(world, *facts)
    kubelet.texts = {f"{fact.job_id}-1-0": b"one\n" for fact in facts}
    call, store_is_away = DirectoryLogStore._call, away == "store"

    async def call_unless_away(store: DirectoryLogStore, *how: Any, **by: Any) -> Any:
        if store_is_away:
            kubelet.looks += 1
            raise Transient("disk away")
        return await call(store, *how, **by)

    with capture_logs() as said:
        async with world.gateway(logs_store=str(kept)):
            monkeypatch.setattr(DirectoryLogStore, "_call", call_unless_away)
            kubelet.away = away if isinstance(away, Exception) else None
            for number, fact in enumerate(facts):
                await world.commit(RunEnded(kind="run_ended", run_id=f"{fact.job_id}-1"))
                if number == 0:
                    await until(lambda: kubelet.looks > 1)  # it lasts by now
            seen = kubelet.looks
            await until(lambda: kubelet.looks > seen + 5)
            assert len(kubelet.asked) <= len(facts)
            kubelet.away, store_is_away = None, False
            await until(lambda: len(stored(kept)) == len(facts))
    events = [line["event"] for line in said]
    assert (events.count("logs_not_collected_for_now"), events.count("logs_collected_again")) == (1, 1)
    assert "work_retries" not in events


async def test_an_answer_without_a_log_says_why_there_is_none(world: World, kubelet: Kubelet, kept: Path) -> None:
    token = await run_begins(world)
    async with world.gateway():
        said = await text(world, token)
        assert isinstance(said, Said)
        assert (said.status, said.code) == (409, "NoLogs")
        assert "logs_store" in said.body["sentence"]
    async with world.gateway(logs_store=str(kept)):
        said = await text(world, token)
        assert isinstance(said, Said)
        assert (said.status, said.code) == (409, "NoLogs")
        assert "not in the store" in said.body["sentence"]


async def test_a_jobs_logs_stay_within_their_bound_and_the_newest_part_is_kept(
    world: World, kubelet: Kubelet, kept: Path
) -> None:
    second = await begins_again(world)
    await DirectoryLogStore(kept).put(log_key(SHARD, LogName("lab", JOB, 1, 0)), b"x" * 60_000)
    kubelet.texts[f"{second}-0"] = b"".join(b"line %06d\n" % n for n in range(10_000))
    async with world.gateway(logs_store=str(kept), logs_job_bytes_max=1 << 16):
        await world.commit(RunEnded(kind="run_ended", run_id=second))
        await until(lambda: list(stored(kept)) == [f"{SHARD}/lab/{JOB}-2-0.log"])
    (whole,) = stored(kept).values()
    assert len(whole) <= 1 << 15
    first, second, *_, last = whole.decode().splitlines()
    assert first.startswith("[the beginning")
    assert second.startswith("line 00")
    assert last == "last words"


async def test_logs_older_than_their_days_are_removed_with_their_folders(
    world: World, kubelet: Kubelet, kept: Path
) -> None:
    store = DirectoryLogStore(kept)
    for job in ("old", "new"):
        await store.put(f"{SHARD}/lab/{job}/1/0.log", b"text")
    os.utime(kept / SHARD / "lab/old/1/0.log", (1, 1))
    async with world.gateway(logs_store=str(kept)):
        await until(lambda: not (kept / SHARD / "lab/old").exists())
    assert list(stored(kept)) == [f"{SHARD}/lab/new/1/0.log"]


async def test_logs_of_many_runs_take_one_folder_and_one_thread(
    world: World, kubelet: Kubelet, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not two folders for each run, nor a thread and a walk over its folders each; attempts count, too."""
    threads, walks = set(), []
    write, walk = DirectoryLogStore._write, DirectoryLogStore._walk

    def writing(store: DirectoryLogStore, path: Path, text: bytes) -> None:
        if path.suffix == ".log":
            threads.add(get_ident())
        write(store, path, text)

    def walking(store: DirectoryLogStore, folder: str) -> Iterator[Any]:
        walks.append(folder)
        return walk(store, folder)

    monkeypatch.setattr(DirectoryLogStore, "_write", writing)
    monkeypatch.setattr(DirectoryLogStore, "_walk", walking)
    facts = [admitted(f"k{number}") for number in range(12)]
    await begin(world, *facts)
    kubelet.texts = {f"{fact.job_id}-1-0": b"one\n" for fact in facts}
    async with world.gateway(logs_store=str(kept)):
        await world.commit(*(RunEnded(kind="run_ended", run_id=f"{fact.job_id}-1") for fact in facts))
        await until(lambda: len(stored(kept)) == len(facts))
    folders = [path for path in kept.rglob("*") if path.is_dir()]
    assert (len(threads), len(folders), walks) == (1, 2, [SHARD, SHARD])  # to remove old ones, and to count


async def test_a_log_that_an_older_version_stored_is_read_counted_and_not_read_again(
    world: World, kubelet: Kubelet, kept: Path
) -> None:
    token = await run_begins(world, role(replicas=2))
    kubelet.texts = {f"{RUN}-{rank}": b"new\n" for rank in range(2)}
    older = older_log_key(SHARD, LogName("lab", JOB, 1, 0))
    assert older == f"{SHARD}/lab/{JOB}/1/0.log"
    await DirectoryLogStore(kept).put(older, b"older\n")
    async with world.gateway(logs_store=str(kept)) as gateway:
        await run_ends(world)
        await until(lambda: len(stored(kept)) == 2)
        kubelet.texts.clear()
        await world.commit(RunAbsent(kind="run_absent", run_id=RUN))
        assert await text(world, token) == "older\n"
        assert await text(world, token, "?rank=1") == "new\nlast words\n"
        counted = gateway.measured("tessera_gateway_stored_log_bytes")
        assert counted == 2 * FILE_BYTES + len("older\n") + len("new\nlast words\n")
    assert kubelet.asked.count(f"lab/{RUN}-0") == 0 or "older" in stored(kept)[older].decode()


@pytest.mark.parametrize(
    "key", ["s/t/.used", "s/t/job/1/0.new", "s/t/job-1.log", "s/t/job-1-x.log", "s/t/a/b/1/0.log", "s/t", "s/.used"]
)
def test_what_others_put_beside_logs_is_none_of_them(key: str) -> None:
    assert read_log_key(key) is None


@given(st.text("ab-1", min_size=1), st.integers(0, 99), st.integers(0, 9999))
def test_a_log_is_known_by_its_key_of_either_form(job: str, attempt: int, rank: int) -> None:
    name = LogName("lab", job, attempt, rank)
    assert read_log_key(log_key(SHARD, name)) == read_log_key(older_log_key(SHARD, name)) == name


async def test_of_two_gateways_one_collects(world: World, kubelet: Kubelet, kept: Path, tmp_path: Path) -> None:
    await run_begins(world)
    kubelet.texts[f"{RUN}-0"] = b"one\n"
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other", broker=world.broker, views=world.views, cluster=kubelet, name="gateway-2")
    async with world.gateway(logs_store=str(kept)):
        async with other.gateway(logs_store=str(kept)):
            await run_ends(world)
            await until(lambda: bool(stored(kept)))
        assert kubelet.asked == [f"lab/{RUN}-0"]


def test_the_newest_part_of_a_text_begins_with_a_whole_line() -> None:
    newest = NewestPart(200)
    for number in range(100):
        newest.add(b"line %d\n" % number)
    text = newest.text()
    assert len(text) <= 200
    assert text.splitlines()[-1] == b"line 99"
    assert text.splitlines()[1].startswith(b"line ")
    short = NewestPart(200)
    short.add(b"all")
    assert short.text() == b"all"


def test_a_place_where_nothing_can_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="logs_store"):
        open_store(str(tmp_path / "file"), {})
    with pytest.raises(StartupError, match="logs_store"):
        open_store("nowhere://bucket", {})
    assert open_store("", {}) is None
