"""
The protocol by a policy as the committer has it, with what is learnt varied: by whom prices are learnt, and how late.

`pack` gives the published policies the form of their papers; here all are the committer's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure
from tessera_lab.pack.cluster import nodes_of
from tessera_lab.pack.learning import DEFAULT, HOW, CommitterPolicy, LearnAtOnce, learnt
from tessera_lab.pack.protocol import LOAD_PERCENT
from tessera_lab.pack.replay import replay
from tessera_lab.traces.alibaba import Trace
from tessera_lab.traces.as_jobs import config


@dataclass(frozen=True, slots=True)
class LiveRun:
    """
    One run; `allocated_…` are per cent of the cluster's GPUs when so many per cent of them have been asked for.
    `priced` says how often prices came into force.
    """

    trace: str
    policy: str
    learnt_by: str
    late: int
    seed: int
    arrivals: int
    dropped: int
    allocated_100: float
    allocated_130: float
    priced: int


def live(
    trace: Trace, policy: str, seed: int, learnt_by: str = HOW[0], late: int = 0, learn: LearnAtOnce = learnt
) -> LiveRun:
    """
    Fill the cluster once, as the committer would. `learnt_by` is one of `HOW`.

    Raises: RefusedThoughItFits; Failure for a policy that the platform does not have.
    """
    config(policy)
    learnt_by = learnt_by if policy == DEFAULT else HOW[-1]
    run = replay(trace, policy, seed, scoring=CommitterPolicy(policy, nodes_of(trace, seed), learnt_by, late, learn))
    return LiveRun(
        trace=trace.name,
        policy=policy,
        learnt_by=learnt_by,
        late=late,
        seed=seed,
        arrivals=run.arrivals,
        dropped=run.dropped,
        allocated_100=round(float(run.allocated[100]), 4),
        allocated_130=round(float(run.allocated[LOAD_PERCENT]), 4),
        priced=run.priced,
    )


def parse_how(text: str) -> str:
    if text not in HOW:
        raise Failure(Exit.USAGE, f"lab: prices are learnt by {', '.join(HOW)}, not by {text!r}")
    return text


def lines_of(runs: Sequence[LiveRun], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = tuple(LiveRun.__slots__)
    rows = [tuple(str(getattr(run, name)) for name in head) for run in runs]
    if separator:
        return [separator.join(row) for row in (head, *rows)]
    return ["".join(f"{value:>14}" for value in row) for row in (head, *rows)]
