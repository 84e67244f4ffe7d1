"""Whether a run goes on, by the steps that its pods report. Pure; times are seconds of one clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.domain.entities import Run
from tessera_schemas.cluster.labels import DIGITS_MAX, PROGRESS_ANNOTATION, has_ended
from tessera_schemas.job import JobProgress
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RunStalled

STEPS_MIN = 4
"""Steps that the median pod has to do within a window before others are compared with it: one step more is no sign."""
PODS_MIN = 3
"""Pods that have to report before any of them is a straggler: of two nobody knows which one is slow."""
NODES_MAX = 16
"""Nodes of a run up to which all of them are named where no pod is behind: as many as a job avoids."""
NAMED_MAX = 4


def steps_of(run: Run, pods: Mapping[str, Mapping[str, Any]]) -> dict[int, int]:
    """
    The last step that each pod of the run's gang reports and has not ended, by rank; what is no whole number is none.
    """
    found: dict[int, int] = {}
    for rank, uid in enumerate(run.uids):
        if uid not in pods or has_ended(pods[uid]):
            continue
        text = str((pods[uid]["metadata"].get("annotations") or {}).get(PROGRESS_ANNOTATION, ""))
        if 0 < len(text) <= DIGITS_MAX and text.isascii() and text.isdigit():
            found[rank] = int(text)
    return found


@dataclass(slots=True)
class StallWatch:
    """Last step of each pod of one run and since when; the window over which pods are compared, and its verdict."""

    steps: dict[int, int] = field(default_factory=dict)
    moved_at: float = 0.0
    window: dict[int, int] = field(default_factory=dict)
    window_at: float = 0.0
    behind: dict[int, int] = field(default_factory=dict)
    """Pods that were behind in the last window, and how many steps each has done in it."""
    median: int = 0

    def look(self, steps: Mapping[int, int], rule: JobProgress, now: float, fresh_since: float) -> None:
        """Take a look over: any step that changed is progress, a lower one too, as after a restart of the program."""
        begins_anew = steps.keys() != self.steps.keys() or any(steps[rank] < self.steps[rank] for rank in steps)
        if begins_anew or steps != self.steps:
            self.moved_at = now
        self.steps = dict(steps)
        # What was not looked at all the time is compared with nothing: a pod would seem slow whose reports came late.
        if begins_anew or self.window_at < fresh_since:
            self.window, self.window_at, self.behind = dict(steps), now, {}
        elif now - self.window_at >= rule.straggler_seconds:
            self._compare(rule.straggler_percent)
            self.window, self.window_at = dict(steps), now

    def _compare(self, percent: int) -> None:
        """Find the pods that are behind the median of the window by so many percent."""
        done = {rank: step - self.window[rank] for rank, step in self.steps.items()}
        self.median = sorted(done.values())[(len(done) - 1) // 2] if done else 0
        enough = percent and len(done) >= PODS_MIN and self.median >= STEPS_MIN
        most = self.median * (100 - percent)
        self.behind = {rank: count for rank, count in done.items() if enough and count * 100 <= most}


def judge(
    run: Run, seen: StallWatch, rule: JobProgress, still_seconds: int, unused_seconds: int = 0
) -> RunStalled | None:
    """
    The fact that the run hangs or has stragglers; None while it goes on, and while nothing was reported.

    For `unused_seconds` none of its GPUs has been used, 0 where one is, or nobody measures that.
    """
    if not seen.steps:
        return None
    # A collective that waits for a lost peer keeps GPUs busy, so that their use shortens the wait and ends none.
    unused = min(still_seconds, unused_seconds)
    is_unused = rule.unused_seconds is not None and unused >= rule.unused_seconds
    if is_unused or still_seconds >= rule.hang_seconds:
        return _hangs(run, seen, still_seconds, unused if is_unused else 0)
    return _straggles(run, seen, rule) if seen.behind else None


def _hangs(run: Run, seen: StallWatch, seconds: int, unused_seconds: int) -> RunStalled:
    first = max(seen.steps.values())
    late = sorted(rank for rank, step in seen.steps.items() if step < first)
    if 2 * len(late) > len(seen.steps):
        late = []  # a few have merely reported sooner than most: that says nothing against the others
    numbers = {"seconds": seconds, "step": first, "pods": len(seen.steps), "behind": len(late)}
    numbers |= {"unused_seconds": unused_seconds} if unused_seconds else {}
    detail = f"behind: {_named(run, late)}" if late else ""
    suspects = _nodes_of(run, late) or (run.nodes if len(run.nodes) <= NODES_MAX else ())
    return _fact(run, Reason(code=Code.HUNG, numbers=numbers, detail=detail), suspects)


def _straggles(run: Run, seen: StallWatch, rule: JobProgress) -> RunStalled:
    late = sorted(seen.behind, key=lambda rank: (seen.behind[rank], rank))
    numbers = {
        "seconds": rule.straggler_seconds,
        "behind": len(late),
        "steps": seen.behind[late[0]],
        "median_steps": seen.median,
    }
    return _fact(run, Reason(code=Code.STRAGGLES, numbers=numbers, detail=_named(run, late)), _nodes_of(run, late))


def _nodes_of(run: Run, ranks: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.placements[rank].node for rank in ranks))


def _named(run: Run, ranks: Sequence[int]) -> str:
    named = ", ".join(f"pod {rank} on {run.placements[rank].node}" for rank in ranks[:NAMED_MAX])
    return named + (f" and {len(ranks) - NAMED_MAX} more" if len(ranks) > NAMED_MAX else "")


def _fact(run: Run, reason: Reason, nodes: tuple[str, ...]) -> RunStalled:
    return RunStalled(kind="run_stalled", run_id=run.run_id, reason=reason, nodes=nodes[:NODES_MAX])
