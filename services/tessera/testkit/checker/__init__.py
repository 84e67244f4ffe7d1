"""
The invariant checker: reads what was stored, and shares no code with what it checks.

It imports the contract and nothing else of Tessera and keeps its own book. Not judged here: the state hashes of
checkpoints and the recomputation of decisions (the replay verifier's part), and the public events (events_checker).
"""

from collections.abc import Iterable, Sequence

from tessera.testkit.checker.pods import PodChange, Pods
from tessera.testkit.checker.report import Report, Violation
from tessera.testkit.checker.story import ENDS, Story
from tessera_schemas.base import job_id

__all__ = ["PodChange", "Report", "Violation", "check"]


def check(
    ledger: Iterable[bytes],
    *,
    shard: str = "main",
    pods: Sequence[PodChange] = (),
    acknowledged: Iterable[tuple[str, str]] = (),
    digests: tuple[str, str] | None = None,
    drained: bool = False,
) -> Report:
    """
    Check I1 to I13 on one shard, but I8.

    Args:
        ledger: the stored bytes of every message, in order, from n = 1.
        pods: every watch event of pods, in order.
        acknowledged: (tenant, key) of submits whose publish was acknowledged; judged when drained.
        digests: Redis as it was, and rebuilt.
        drained: faults have stopped and everything was given time to end.
    """
    story = Story(Report())
    seen, waiting = Pods(story), list(reversed(pods))
    for stored in ledger:
        # A change at n happened before message n + 1 was appended.
        while waiting and (n := waiting[-1].n) is not None and n <= story.n:
            seen.take(waiting.pop())
        if not story.take(stored):
            return story.report
        seen.released()
    while waiting:
        seen.take(waiting.pop())
    seen.end(drained)
    if drained:
        _drained(story)
        _kept(story, shard, acknowledged)
    if digests is not None:
        story.demand(digests[0] == digests[1], "I9", f"Redis hashes {digests[0]}, rebuilt {digests[1]}")
    return story.report


def _drained(story: Story) -> None:
    for job in story.jobs.values():
        story.demand(job.phase in ENDS, "I4", f"job {job.job_id} is still {job.phase}")
    left = [run.run_id for run in story.runs.values() if not run.released]
    story.demand(not left and not story.earmarks, "I12", f"runs {left} and earmarks {list(story.earmarks)} are left")


def _kept(story: Story, shard: str, acknowledged: Iterable[tuple[str, str]]) -> None:
    """Refusals beyond the recorded rate are only counted, so that many of a tenant may be unknown by id."""
    unrecorded = story.repeats.copy()
    for tenant, key in acknowledged:
        story.report.examined["submits"] += 1
        id_ = job_id(shard, tenant, key)
        unrecorded[tenant] -= id_ not in story.jobs and id_ not in story.turned_away
        story.demand(unrecorded[tenant] >= 0, "I5", f"submit {key!r} of {tenant} is in no record")
