"""A trace through all services in one process: as much is used as through the engine alone, and the ledger holds."""

from dataclasses import replace

import pytest

from tessera.client.outcomes import Failure
from tessera.domain.mix import SETTLED_AT
from tessera_lab.pack.replay import replay
from tessera_lab.pack.services import lines_of, through_services
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod

LARGE, SMALL = TraceNode(64_000, 262_144, 8, "A100"), TraceNode(8_000, 32_768, 2, "T4")
NODES = (LARGE, LARGE, SMALL)
PODS = (
    TracePod(4_000, 8_192, 1, 1000),
    TracePod(4_000, 8_192, 1, 460),
    TracePod(8_000, 8_192, 4, 1000, ("A100",)),
    TracePod(2_000, 4_096, 1, 300),
    TracePod(16_000, 8_192, 8, 1000),
    TracePod(3_000, 4_096, 0, 0),
)
TRACE = Trace("small", NODES, PODS)


@pytest.mark.parametrize("seed", [42, 43, 44])
def test_best_fit_uses_as_much_through_the_platform_as_by_itself(seed: int) -> None:
    alone, run = replay(TRACE, "bestfit", seed), through_services(TRACE, "bestfit", seed)
    assert (run.arrivals, run.dropped) == (alone.arrivals, alone.dropped)
    assert run.recomputed == run.messages > run.arrivals


def test_a_run_may_end_early_and_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    run = through_services(TRACE, "tessera", 42, most=3, report_progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert run.arrivals == 3
    assert run.dropped == 0
    assert lines_of([run], ",")[1].startswith("small,tessera,42,3,0,")


def test_prices_are_learnt_while_it_runs_and_the_replay_decides_the_same_by_them() -> None:
    more = Trace("more", NODES * 3, tuple(replace(pod, cpu_milli=pod.cpu_milli // 8 + 1) for pod in PODS[1:4] * 30))
    run = through_services(more, "tessera", 42, most=SETTLED_AT[0] + 5)
    assert run.priced == 2
    assert run.recomputed == run.messages > run.arrivals


def test_a_policy_that_the_platform_does_not_have_is_refused() -> None:
    with pytest.raises(Failure, match="not by gpu-clustering"):
        through_services(TRACE, "gpu-clustering", 42)
