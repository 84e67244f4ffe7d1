"""The checker's rules of data sets: what the fold learns passes, and each place that does not follow is found."""

from collections.abc import Sequence
from typing import Any

import orjson

from tessera.testkit.checker.report import Report
from tessera.testkit.datasets_checker import SaidPlaces, check_datasets
from tessera_schemas.base import job_id
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.facts import RunEnded
from tessera_schemas.job import DatasetHint
from tessera_schemas.ledger import Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import DatasetNoted, DatasetTold
from tests.builders import SHARD, job_spec, node_seen, role, run_absent
from tests.rounds import Rounds, share
from tests.unit.testkit.stored_ledgers import Shard

GB, HOUR = 10**9, 3_600_000
CORPUS = DatasetHint(name="corpus", size_bytes=500 * GB)
MAPS = DatasetHint(name="maps", size_bytes=400 * GB)
PHOTOS = DatasetHint(name="photos", size_bytes=300 * GB)
NODES = [node_seen(f"node-{name}", 8) for name in "abc"]


def park() -> Rounds:
    caches = DataCaches(node_bytes=1000 * GB, kept_seconds=7200)
    return Rounds(share("research", 64, None), nodes=NODES, data_caches=caches)


def ran(world: Rounds, key: str, *datasets: DatasetHint, **more: Any) -> None:
    """A job that reads these data sets has started and ended."""
    world.submit(key, gpus=8, datasets=datasets, **more)
    world.settle()
    world.finish(key)


def told(*nodes: str, gone: tuple[str, ...] = (), size: int = 600 * GB, tenant: str = "lab") -> DatasetTold:
    places = ToldPlaces(size_bytes=size if nodes else 0, nodes=nodes, gone=gone)
    return DatasetTold(kind="dataset_told", tenant=tenant, dataset="told", places=places)


def said_by(world: Rounds) -> dict[str, tuple[tuple[str, int, int], ...]]:
    return {node.name: node.kept_data for node in world.state.nodes.values()}


def violations(stored: Sequence[bytes], said: SaidPlaces) -> list[str]:
    report = Report()
    check_datasets(report, stored, said)
    assert report.examined["data"]
    assert {each.invariant for each in report.violations} <= {"data"}
    return [each.text for each in report.violations]


def used() -> Rounds:
    """Runs of several data sets, words of two tenants, a node that goes and comes back, and hours that pass."""
    world = park()
    ran(world, "a", CORPUS, MAPS)
    ran(world, "b", PHOTOS)
    world.commit(told("node-a", "node-b"))
    world.commit(told("node-c", tenant="other"), told("node-b", size=550 * GB))
    ran(world, "c", CORPUS)
    world.commit(told("node-b", gone=("node-a",), size=550 * GB))
    world.submit("d", gpus=8, pods=3, datasets=(MAPS,))
    world.settle()
    world.commit(node_seen("node-c", 0, gone=True, ready=False))
    world.commit(node_seen("node-c", 8))
    world.commit(ms=HOUR)
    world.commit(told("node-b", size=550 * GB))
    world.finish("d")
    return world


def test_what_the_fold_learns_follows_from_runs_and_words() -> None:
    world = used()
    said = said_by(world)
    assert {key for has in said.values() for key, _, _ in has} == {"lab/corpus", "lab/maps", "lab/told"}
    assert violations(world.stored, said) == []
    for _ in range(4):
        world.commit(ms=HOUR, checkpoint=True)
        assert violations(world.stored, said_by(world)) == []
    assert not any(said_by(world).values()), "all of it is forgotten by now"


def test_a_data_set_too_many_too_few_of_another_size_or_time_is_found() -> None:
    world = used()
    said = said_by(world)
    name, has = next((name, has) for name, has in said.items() if has)
    key, size, ts = has[0]
    for wrong in (has[1:], (*has, ("lab/x", 1, ts)), ((key, size + 1, ts), *has[1:]), ((key, size, ts - 1), *has[1:])):
        (text,) = violations(world.stored, said | {name: wrong})
        assert text.startswith(f"{name} is said to have")
    assert violations(world.stored, {})[0].startswith("node-")


def test_a_word_that_is_no_news_is_found() -> None:
    shard = Shard()
    for _ in range(2):
        shard.add(DatasetNoted(kind="dataset_noted", fact=0), facts=[told("node-a")])
    assert violations(shard.stored, {"node-a": [("lab/told", 600 * GB, shard.ts - 1000)]}) == [
        "told of lab: what is told is no news"
    ]


def wait(shard: Shard, seconds: int, ms: int = 1000) -> None:
    numbers = {"until_ts": shard.ts + ms + 1000 * seconds}
    reason = Reason(code=Code.WAITING_FOR_DATA, numbers=numbers)
    shard.add(Waiting(kind="waiting", job_id=job_id(SHARD, "lab", "k1"), reason=reason), ms=ms)


def queued(*datasets: DatasetHint) -> Shard:
    shard = Shard()
    shard.queued(spec=job_spec(role(gpus=1), datasets=datasets))
    return shard


def test_a_job_waits_for_data_that_it_reads_and_for_a_part_of_the_reading() -> None:
    for seconds, wrong in ((250, 0), (251, 1), (0, 1)):
        shard = queued(CORPUS)
        wait(shard, seconds)
        assert len(violations(shard.stored, {})) == wrong, seconds
    longer = queued(CORPUS)
    wait(longer, 200)
    wait(longer, 200)
    assert "after" in violations(longer.stored, {})[0]
    none = queued()
    wait(none, 1)
    assert violations(none.stored, {})[0] == f"{job_id(SHARD, 'lab', 'k1')} waits for data, and names none"


def test_a_committers_waits_pass() -> None:
    world = park()
    for key in "ab":
        world.submit(key, gpus=8, datasets=(CORPUS,))
        world.settle()
    assert world.job("b").reason.code is Code.WAITING_FOR_DATA
    world.commit(ms=100_000)
    world.commit(RunEnded(kind="run_ended", run_id=world.job("a").run_id), run_absent(world.job("a").run_id))
    world.settle()
    assert violations(world.stored, said_by(world)) == []
    assert orjson.loads(world.stored[-1])["n"] == len(world.stored)
