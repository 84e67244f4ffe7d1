"""
The ladder of a job's restarts: in place first, then elsewhere, then outside of a whole domain. Pure.

Without one each node that fails a run is avoided at once, and never more than nodes. Rungs are counted by what a job
knows anyway: failures and troubles in a row, which a run that held forgives, and the nodes that it avoids.
"""

from collections import Counter
from collections.abc import Sequence

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import RungTaken

AVOID_MAX = 64
"""Nodes that one record names as having failed a run."""
MAY_STAND = frozenset({Code.POD_FAILED, Code.HUNG, Code.STRAGGLES})
"""Failures that may be the program's as well as its node's; any other that names a node says so of that node."""


def failing_nodes(run: Run, fact: RunEnded) -> tuple[str, ...]:
    """
    The nodes on which the pods failed that broke the run, or whose kubelets did not take them: something may be wrong
    there that is in no book here, such as a disk or a GPU. The job's next attempt avoids them while there is room on
    others.
    """
    broke = [place.node for place in run.all_placements if place.rank == fact.rank or place.node in fact.nodes]
    return tuple(dict.fromkeys(broke))[:AVOID_MAX]


def choose_rung(state: State, job: Job | None, code: Code, nodes: Sequence[str], fresh: bool) -> RungTaken | None:
    """
    The rung on which the job starts again after a failure for `code` that `nodes` are blamed for; None without a ladder
    and where no node is blamed. `fresh`: the run held, and what came before it is forgiven.
    """
    ladder = None if job is None else job.retry.ladder
    if job is None or ladder is None or not nodes:
        return None
    # Strikes and troubles are counted anyway, and forgiven by a run that held: a counter of the ladder's own could only
    # disagree with them.
    failures = 0 if fresh else job.strikes + job.troubles
    if code in MAY_STAND and failures < ladder.in_place:
        return RungTaken(kind="rung_taken", job_id=job.job_id, rung="in_place", count=failures + 1)
    # From here on elsewhere: the widest rung that has grounds is taken at once, since a job that fails in one rack
    # after the other has lost a run on each node before anybody else would say that it is the rack.
    blamed = tuple(nodes)[:AVOID_MAX]
    label = _label_of(state, ladder.level)
    domain, count = _worst_domain(state, label, job, blamed) if label and ladder.domain_after else ("", 0)
    if domain and count >= ladder.domain_after:
        return RungTaken(
            kind="rung_taken", job_id=job.job_id, rung="domain", count=count, nodes=blamed, domain=f"{label}={domain}"
        )
    # Told from one on, however many failures were in place before: the story counts this rung's own.
    count = max(1, failures + 1 - ladder.in_place)
    return RungTaken(kind="rung_taken", job_id=job.job_id, rung="elsewhere", count=count, nodes=blamed)


def _label_of(state: State, level: str | None) -> str:
    """The label of a level by its name, or of the narrowest one of the configuration; "" where there is none."""
    levels = state.tree.levels
    if level is None:
        return next(reversed(levels.values()), "")
    return levels.get(level, level)


def _worst_domain(state: State, label: str, job: Job, blamed: Sequence[str]) -> tuple[str, int]:
    """Of the domains of the blamed nodes the one with most nodes that failed the job, first by name, and how many."""
    # Domains stand among the nodes to avoid; they are no nodes, and so are found nowhere here.
    failed = dict.fromkeys((*job.avoid, *blamed))
    where = {node.name: node.label(label) or "" for node in state.nodes.found(failed)}
    counts = Counter(where.values())
    found = sorted((-counts[domain], domain) for name in blamed if (domain := where.get(name, "")))
    return (found[0][1], -found[0][0]) if found else ("", 0)
