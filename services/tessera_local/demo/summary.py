"""Summary of the demo, in lines of at most 80 columns."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tessera_local.demo.judging import Judgement

WIDTH = 80
TITLE_WIDTH = 17
FINDINGS = 5
NOTICEABLE_MS = 500  # of waiting; over less than that, a ratio says nothing
INVARIANT = re.compile("I[0-9]+")
EXAMINED = ("messages", "events", "submits", "placements", "pod changes")


@dataclass(frozen=True, slots=True)
class Kill:
    """A service that was killed: when, and how long until it was back; None if it never was."""

    service: str
    at_seconds: float
    back_seconds: float | None
    running: int
    submitted: int


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """
    Figures of the summary.

    `gangs` has the number of pods of each; `phases` counts the jobs by how they ended, and the rest of them is lost.
    """

    jobs: int
    gangs: list[int]
    phases: Mapping[str, int]
    reasons: Counter[str]
    begun_ms: Mapping[str, int]
    judgement: Judgement
    evicted: int = 0
    kill: Kill | None = None
    restarts: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Number of jobs that no phase counts: nobody saw an end of theirs."""
        return self.jobs - sum(self.phases.values())

    @property
    def ok(self) -> bool:
        """True when checker and replay found nothing and no job was lost."""
        return self.judgement.ok and not self.lost


def summary(outcome: DemoOutcome) -> list[str]:
    """The lines."""
    rows = [*_work(outcome), *_kill(outcome), *_verdicts(outcome)]
    return ["─" * WIDTH, *(line for title, text in rows for line in _row(title, text)), "─" * WIDTH]


def _row(title: str, text: str) -> list[str]:
    indent = " " * TITLE_WIDTH
    return textwrap.wrap(text, WIDTH, initial_indent=f"{title:{TITLE_WIDTH}}", subsequent_indent=indent)


def _work(outcome: DemoOutcome) -> Iterator[tuple[str, str]]:
    counts = ", ".join(f"{count} {phase}" for phase, count in outcome.phases.items())
    yield "jobs", f"{outcome.jobs} submitted: {counts}, {outcome.lost} lost"
    for reason, count in outcome.reasons.most_common(FINDINGS):
        yield "  refused", f"{count} × {reason}"
    if gangs := outcome.gangs:
        yield "gangs", f"{len(gangs)} of them, of {min(gangs)} to {max(gangs)} pods; each starts whole or not at all"
    if outcome.evicted:
        yield "evictions", f"{outcome.evicted} runs made room for others and were tried again; no work ended by it"
    measures = outcome.judgement.measures
    if not measures.allocated_ts:
        return
    seconds = (max(measures.allocated_ts) - min(outcome.begun_ms.values())) / 1000
    allocated = len(measures.allocated_ts)
    rate = f"{allocated / max(seconds, 0.001):.1f} per second"
    yield "allocations", f"{allocated} in {seconds:.1f} s: {rate}, {measures.best_second()} in the best second"
    waits = sorted(ts - outcome.begun_ms[job] for job, ts in measures.first_ts.items() if job in outcome.begun_ms)
    yield "waits", f"p50 {_percentile(waits, 50):.2f} s, p99 {_percentile(waits, 99):.2f} s, from submit to allocated"
    if measures.waiting_ms < NOTICEABLE_MS:
        yield "GPUs", "no job waited for one"
        return
    waiting = f"the {measures.waiting_ms / 1000:.1f} s in which jobs waited for GPUs"
    yield "GPUs", f"{measures.ratio_percent:.0f} % allocated, time-weighted over {waiting}"


def _kill(outcome: DemoOutcome) -> Iterator[tuple[str, str]]:
    kill = outcome.kill
    if kill is None:
        return
    how = "next decision" if kill.service == "scheduler" else "ready again"
    back = "it never came back" if kill.back_seconds is None else f"{how} after {kill.back_seconds:.1f} s"
    title = "failover" if kill.service == "scheduler" else "recovery"
    yield title, f"kill -9 of the {kill.service} {kill.at_seconds:.1f} s into the work; {back}"
    yield "  meanwhile", f"{kill.running} jobs ran on, {kill.submitted} more were submitted"


def _verdicts(outcome: DemoOutcome) -> Iterator[tuple[str, str]]:
    report, replay = outcome.judgement.report, outcome.judgement.replay
    seen = ", ".join(f"{report.examined[name]} {name}" for name in EXAMINED)
    invariants = sum(bool(INVARIANT.fullmatch(name)) for name in report.examined)
    found = f"{len(report.violations)} VIOLATIONS" if report.violations else "ok, all hold"
    yield "checker", f"{found}: {invariants} invariants on {seen}, and Redis against a rebuild"
    for violation in report.violations[:FINDINGS]:
        yield "  found", f"{violation.invariant} at {violation.n}: {violation.text}"
    decided = f"{replay.messages} messages, {replay.recomputed} decisions and {replay.orders} orders recomputed"
    verdict = "ok, all equal" if replay.ok else f"{replay.wrong} FINDINGS"
    yield "replay --verify", f"{verdict}: {decided}; state hash {replay.state_hash[:16]}…"
    for finding in replay.findings[:FINDINGS]:
        yield "  found", finding
    for line in outcome.restarts:
        yield "restarted", line


def _percentile(sorted_ms: list[int], percent: int) -> float:
    """Nearest rank, in seconds."""
    if not sorted_ms:
        return 0.0
    return sorted_ms[max(0, -(-percent * len(sorted_ms) // 100) - 1)] / 1000
