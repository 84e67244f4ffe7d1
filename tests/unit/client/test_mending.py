"""What is damaged is named, what can be saved is written beside it, and nothing is done to the stored ledger."""

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands import context
from tessera.client.commands.ledger_care import mending
from tessera.client.connect.where import Where
from tessera.client.ledger import opening_file, repairing
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.reading import StoredLedger
from tessera.client.ledger.reconciling import Unexplained, disagreements
from tessera.client.ledger.repairing import ASIDE, RECORD, examine, write_repair
from tessera.client.ledger.witnesses import Known
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import NAME_ANNOTATION, RUN_LABEL, SHARD_LABEL, TENANT_LABEL
from tests.builders import SHARD, admitted
from tests.ledgers import Committed, rechain

LEDGER = subjects.stream("LEDGER", SHARD)


@pytest.fixture(scope="module")
def whole() -> list[bytes]:
    made = Committed().begin()
    for key in ("k1", "k2"):
        made.run_to_its_end(key)
    return made.stored


def stored(messages: list[bytes], *lacking: int) -> StoredLedger:
    broker = MemoryBroker(SystemClock())
    broker.add_shard(SHARD)
    for data in messages:
        broker.store(Outgoing(subjects.ledger(SHARD), data))
    for n in lacking:
        broker.stream(LEDGER).remove(n)
    bus = MemoryBus(broker)
    return StoredLedger(bus, StreamLedger(bus, SHARD), SHARD)


async def backup(directory: Path, messages: list[bytes]) -> Backup:
    async def every() -> AsyncIterator[tuple[int, bytes]]:
        for n, data in enumerate(messages, start=1):
            yield n, data

    return await Backup.read(directory, SHARD).extended(every())


async def test_a_whole_ledger_needs_no_repair(whole: list[bytes]) -> None:
    found = await examine(stored(whole), None, Known("EVENTS", len(whole)))
    assert not found.damage
    assert found.head.startswith(f"{len(whole)}:")


async def test_a_gap_is_closed_by_the_backup_and_what_continues_it_is_kept(tmp_path: Path, whole: list[bytes]) -> None:
    ledger, copy = stored(whole, 6), await backup(tmp_path / "backup", whole[:9])
    found = await examine(ledger, copy, Known())
    assert found.damage.startswith("gap: after 5 comes 7")
    assert found.head.startswith(f"{len(whole)}:")
    made = await write_repair(ledger, copy, found, tmp_path / "repaired")
    assert [data for _, data in Backup.read(made.directory).messages()] == whole
    record = json.loads((made.directory / RECORD).read_text())
    assert (record["damage"], record["head"]) == (found.damage, found.head)
    with gzip.open(made.directory / ASIDE) as lines:
        assert [int(line.split(b" ")[0]) for line in lines] == list(range(7, len(whole) + 1))


async def test_without_a_backup_a_ledger_is_cut_before_its_gap(tmp_path: Path, whole: list[bytes]) -> None:
    ledger = stored(whole, 6)
    found = await examine(ledger, None, Known())
    assert (found.stored_head, found.aside) == (found.head, len(whole) - 6)
    made = await write_repair(ledger, None, found, tmp_path / "repaired")
    assert [data for _, data in made.messages()] == whole[:5]


async def test_of_a_fork_the_backup_wins_and_the_other_side_is_evidence(tmp_path: Path, whole: list[bytes]) -> None:
    forged = rechain(whole, 4, lambda message: message.update(tx="another-transaction"))
    copy = await backup(tmp_path / "backup", whole[:8])
    found = await examine(stored(forged), copy, Known())
    assert found.damage == "fork: message 4 is another one than in the backup"
    assert found.head == str(copy.head)
    made = await write_repair(stored(forged), copy, found, tmp_path / "repaired")
    assert [data for _, data in made.messages()] == whole[:8]
    with gzip.open(made.directory / ASIDE) as lines:
        assert next(lines).startswith(b"4 ")


async def test_a_torn_tail_is_told_by_a_backup_or_by_what_is_derived(tmp_path: Path, whole: list[bytes]) -> None:
    end = len(whole)
    copy = await backup(tmp_path / "backup", whole)
    found = await examine(stored(whole[:5]), copy, Known())
    assert found.damage == f"torn tail: it ends at 5, and the backup knows message {end}"
    assert found.head == str(copy.head)
    alone = await examine(stored(whole[:5]), None, Known("EVENTS", 7))
    assert alone.damage == "torn tail: it ends at 5, and EVENTS knows message 7"
    assert alone.head == alone.stored_head


async def test_a_repair_is_never_written_over_anything(tmp_path: Path, whole: list[bytes]) -> None:
    copy = await backup(tmp_path / "backup", whole)
    found = await examine(stored(whole[:5]), copy, Known())
    with pytest.raises(Failure, match="is not empty"):
        await write_repair(stored(whole[:5]), copy, found, tmp_path / "backup")
    assert Backup.read(tmp_path / "backup") == copy


async def test_the_record_of_a_repair_is_whole_or_not_there(
    tmp_path: Path, whole: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while the record is written."""
    ledger, sync = stored(whole, 6), opening_file.sync_to_disk

    def full(path: Path) -> None:
        if path.name.startswith(RECORD):
            raise OSError(28, "No space left on device")
        sync(path)

    found = await examine(ledger, None, Known())
    for module in (opening_file, repairing):
        monkeypatch.setattr(module, "sync_to_disk", full)
    with pytest.raises(OSError, match="No space"):
        await write_repair(ledger, None, found, tmp_path / "repaired")
    assert not (tmp_path / "repaired" / RECORD).exists()


def pod(run: str, phase: str = "Running", shard: str = SHARD, rank: int = 0) -> dict[str, Any]:
    labels = {RUN_LABEL: run, SHARD_LABEL: shard, TENANT_LABEL: "lab"}
    meta = {"name": f"{run}-{rank}", "namespace": "lab", "labels": labels, "annotations": {NAME_ANNOTATION: "train"}}
    return {"metadata": meta, "status": {"phase": phase}}


def test_work_that_the_ledger_does_not_explain_is_named_with_what_could_be_done() -> None:
    books = Committed().begin()
    ended = books.run_to_its_end("k1")
    waits = admitted("waits")
    books.commit(waits)
    lost = "a" * 20
    pods = [pod(f"{lost}-1"), pod(f"{lost}-1", rank=1), pod(f"{waits.job_id}-1"), pod(f"{ended}-1")]
    pods += [pod(f"{'b' * 20}-1", shard="other"), {"metadata": {"name": "foreign", "namespace": "lab"}}]
    found = {one.run_id: one for one in disagreements(books.state, pods, SHARD)}
    assert {run: one.kind for run, one in found.items()} == {
        f"{lost}-1": Unexplained.LOST_JOB,
        f"{waits.job_id}-1": Unexplained.LOST_RUN,
        f"{ended}-1": Unexplained.ENDED_RUN,
    }
    assert list(found[f"{lost}-1"].commands()) == [f"kubectl delete pod -n lab {lost}-1-0 {lost}-1-1"]
    assert (found[f"{lost}-1"].name, found[f"{lost}-1"].tenant, found[f"{lost}-1"].running) == ("train", "lab", 2)
    assert found[f"{ended}-1"].proposal == "delete its pods"


def test_pods_that_stand_for_their_logs_after_their_run_are_no_disagreement() -> None:
    books = Committed().begin()
    ended = books.run_to_its_end("k1")
    assert (
        disagreements(books.state, [pod(f"{ended}-1", "Succeeded"), pod(f"{ended}-1", "Failed", rank=1)], SHARD) == []
    )
    (one,) = disagreements(books.state, [pod(f"{'a' * 20}-1", "Failed")], SHARD)
    assert (one.kind, one.proposal) == (Unexplained.LOST_JOB, "delete its pods, which have ended")


def test_a_started_run_without_pods_is_named_and_one_with_its_pods_is_not() -> None:
    books = Committed().begin()
    job = admitted("runs")
    books.commit(job)
    books.start(job.job_id, "runs")
    (one,) = disagreements(books.state, [], SHARD)
    assert (one.kind, list(one.commands())) == (Unexplained.NO_PODS, [])
    assert disagreements(books.state, [pod(f"{job.job_id}-1")], SHARD) == []


class Cluster:
    """A cluster that has these pods."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self._pods = pods

    async def list(self, kind: str) -> tuple[list[dict[str, Any]], str]:
        assert kind == "pods"
        return list(self._pods), "1"

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The command with these words, of a ledger in memory and a cluster."""

    def run(ledger: list[bytes], lacking: tuple[int, ...], cluster: Cluster, *words: str) -> tuple[int, str]:
        @asynccontextmanager
        async def opened(*_: Any) -> AsyncIterator[StoredLedger]:
            yield stored(ledger, *lacking)

        monkeypatch.setattr(mending, "stored_ledger", opened)
        monkeypatch.setattr(mending, "cluster_of", lambda _: cluster)
        monkeypatch.setattr(context, "find", lambda *_, **__: Where(SHARD))
        done = CliRunner().invoke(app, ["ledger", *words])
        return done.exit_code, done.output

    return run


def test_the_command_only_looks_until_a_directory_is_named_and_what_it_writes_is_whole(
    ran: Callable[..., tuple[int, str]], whole: list[bytes], tmp_path: Path
) -> None:
    code, said = ran(whole, (6,), Cluster(), "repair")
    assert (code, "gap: after 5 comes 7" in said, "nothing was written" in said) == (Exit.FAILED, True, True)
    code, said = ran(whole, (6,), Cluster(), "repair", str(tmp_path / "new"))
    assert (code, "put it into empty servers" in said) == (Exit.FAILED, True)
    assert [data for _, data in Backup.read(tmp_path / "new").messages()] == whole[:5]
    code, said = ran(whole, (), Cluster(), "repair", str(tmp_path / "unneeded"))
    assert (code, "there is nothing to repair" in said) == (Exit.OK, True)
    assert not (tmp_path / "unneeded").exists()


def test_the_command_proposes_and_ends_with_0_once_ledger_and_cluster_agree(
    ran: Callable[..., tuple[int, str]], whole: list[bytes]
) -> None:
    lost = f"{'a' * 20}-1"
    code, said = ran(whole, (), Cluster(pod(lost)), "reconcile")
    assert code == Exit.FAILED
    assert f"{lost} (train of lab): the ledger does not know the job" in said
    assert f"kubectl delete pod -n lab {lost}-0" in said
    assert ran(whole, (), Cluster(), "reconcile")[0] == Exit.OK
