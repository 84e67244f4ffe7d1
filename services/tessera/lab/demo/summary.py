"""What the demo came to, in lines of at most 80 columns."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tessera.lab.demo.judging import Judgement

WIDTH = 80
TITLE_WIDTH = 14
FINDINGS = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """A service that was killed: when, and how long until it was back; None if it never was."""

    service: str
    at_seconds: float
    back_seconds: float | None
    running: int
    submitted: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that the summary tells. `phases` counts the jobs by how they ended; the rest of them is lost."""

    jobs: int
    gangs: int
    phases: Mapping[str, int]
    reasons: Counter[str]
    begun_ms: Mapping[str, int]
    judgement: Judgement
    kill: Kill | None = None
    restarts: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.jobs - sum(self.phases.values())

    @property
    def ok(self) -> bool:
        return self.judgement.ok and not self.lost


def summary(outcome: Outcome) -> list[str]:
    """The lines."""
    rows = [*_work(outcome), *_kill(outcome), *_verdicts(outcome)]
    return ["─" * WIDTH, *(line for title, text in rows for line in _row(title, text)), "─" * WIDTH]


def _row(title: str, text: str) -> list[str]:
    indent = " " * TITLE_WIDTH
    return textwrap.wrap(text, WIDTH, initial_indent=f"{title:{TITLE_WIDTH}}", subsequent_indent=indent)


def _work(outcome: Outcome) -> Iterator[tuple[str, str]]:
    said = ", ".join(f"{count} {phase}" for phase, count in outcome.phases.items())
    yield "jobs", f"{outcome.jobs} submitted: {said}, {outcome.lost} lost"
    for reason, count in outcome.reasons.most_common(FINDINGS):
        yield "  refused", f"{count} × {reason}"
    yield "gangs", f"{outcome.gangs} of them, of 2 to 16 pods; each starts whole or not at all"
    measures = outcome.judgement.measures
    if not measures.allocated_ts:
        return
    seconds = (max(measures.allocated_ts) - min(outcome.begun_ms.values())) / 1000
    allocated = len(measures.allocated_ts)
    rate = f"{allocated / max(seconds, 0.001):.1f} per second"
    yield "allocations", f"{allocated} in {seconds:.1f} s: {rate}, {measures.best_second()} in the best second"
    waits = sorted(ts - outcome.begun_ms[job] for job, ts in measures.first_ts.items() if job in outcome.begun_ms)
    yield "waits", f"p50 {_percentile(waits, 50):.2f} s, p99 {_percentile(waits, 99):.2f} s, from submit to allocated"
    waiting = f"{measures.waiting_ms / 1000:.1f} s in which jobs waited for GPUs"
    yield "GPUs", f"{measures.ratio_percent:.0f} % allocated, time-weighted over the {waiting}"


def _kill(outcome: Outcome) -> Iterator[tuple[str, str]]:
    kill = outcome.kill
    if kill is None:
        return
    back = (
        "it never came back"
        if kill.back_seconds is None
        else f"{_BACK.get(kill.service, 'ready again')} {kill.back_seconds:.1f} s later"
    )
    yield "kill -9", f"{kill.service}, {kill.at_seconds:.1f} s after the first submit; {back}"
    yield "  meanwhile", f"{kill.running} jobs ran on, and {kill.submitted} more were submitted and taken in"


_BACK = {"scheduler": "committer failover: the next decision came"}


def _verdicts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    report, replay = outcome.judgement.report, outcome.judgement.replay
    seen = report.examined
    what = ("messages", "events", "submits", "placements", "pod changes")
    counts = ", ".join(f"{seen[name]} {name}" for name in what)
    yield (
        "checker",
        f"{len(report.violations) or 'no'} violations of I1 to I13 in {counts}, and Redis against a rebuild",
    )
    for violation in report.violations[:FINDINGS]:
        yield "  found", f"{violation.invariant} at {violation.n}: {violation.text}"
    same = "all equal" if replay.ok else f"{replay.wrong} findings"
    decided = f"{replay.recomputed} decisions and {replay.orders} orders recomputed"
    yield "replay", f"{replay.messages} messages, {decided}: {same}; state hash {replay.state_hash[:16]}…"
    for finding in replay.findings[:FINDINGS]:
        yield "  found", finding
    for line in outcome.restarts:
        yield "restarted", line


def _percentile(sorted_ms: list[int], percent: int) -> float:
    """Nearest rank, in seconds."""
    if not sorted_ms:
        return 0.0
    return sorted_ms[max(0, -(-percent * len(sorted_ms) // 100) - 1)] / 1000
