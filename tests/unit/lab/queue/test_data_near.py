"""Jobs that read data sets: what is read where nodes are chosen by it, and where they are not."""

from tessera_lab.queue.data_near import PlayedCaches, ReadingEngine, drawn_datasets, first_reads
from tessera_lab.queue.replay import replay
from tessera_lab.traces.philly import TraceJob
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.job import DatasetHint

JOBS = tuple(TraceJob(line, 600 * line, 3600, 1 + line % 4, "a") for line in range(1, 81))


QUICK = tuple(TraceJob(line, 60 * line, 300, 1 + line % 4, "a") for line in range(1, 81))


def read(rate: int, percent: int = 0, jobs: tuple[TraceJob, ...] = JOBS, nodes: int = 6) -> tuple[int, int]:
    """Bytes that nodes read, and the longest wait."""
    rules = DataCaches(read_bytes_per_second=rate, wait_percent=percent)
    engine = ReadingEngine("expected", [8] * nodes, drawn_datasets(jobs, 8, 1), rules)
    waits = replay(jobs, engine, wakes=engine.next_wait_s)
    return engine.caches.read, max(waits)


def test_less_is_read_where_nodes_are_chosen_by_their_data_and_nobody_waits_for_it() -> None:
    (far, waited), (near, waited_near) = read(0), read(10**9)
    assert near < far
    assert waited_near == waited == 0


def test_still_less_is_read_where_jobs_wait_for_their_nodes_for_a_part_of_the_reading() -> None:
    (near, _), (nearer, longest) = read(10**9, 0, QUICK, 3), read(10**9, 50, QUICK, 3)
    assert first_reads(drawn_datasets(QUICK, 8, 1)) <= nearer < near
    assert 0 < longest <= max(each.size_bytes for each in drawn_datasets(QUICK, 8, 1).values()) // 10**9 // 2 + 1


def test_a_cache_keeps_what_was_used_last_and_reads_the_rest_again() -> None:
    caches = PlayedCaches(node_bytes=10)
    for name, size in (("a", 6), ("b", 4), ("a", 6), ("c", 3), ("b", 4), ("a", 6)):
        caches.use("node-a", DatasetHint(name=name, size_bytes=size))
    assert (caches.asked, caches.read) == (29, 6 + 4 + 3 + 4 + 6)


def test_a_rack_reads_once_and_holds_what_its_nodes_hold_together() -> None:
    caches = PlayedCaches(node_bytes=10, rack=2)
    for node, name in (("node-0", "a"), ("node-1", "a"), ("node-1", "b"), ("node-2", "a"), ("node-0", "b")):
        caches.use(node, DatasetHint(name=name, size_bytes=10))
    assert (caches.asked, caches.read) == (50, 30)
