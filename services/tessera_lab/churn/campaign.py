"""Many runs: loads times seeds, each with its bound, times policies without and with defragmentation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tessera.client.outcomes import Exit, Failure
from tessera.kernel.errors import StartupError
from tessera_lab.churn.lifetimes import Timed
from tessera_lab.churn.pooled import fluid_percent
from tessera_lab.churn.replay import ChurnOutcome, Ready, Span, bound, replay

LOADS = 1, 150
MOST_DAYS = 90


@dataclass(frozen=True, slots=True)
class Variant:
    """Identity of the runs that belong together."""

    load: int
    policy: str
    defragment: bool


@dataclass(frozen=True, slots=True)
class Campaign:
    """All runs, in the order of the seeds; the bounds by load, and the fluid bound in per cent."""

    timed: Timed
    span: Span
    seeds: tuple[int, ...]
    runs: dict[Variant, list[ChurnOutcome]] = field(default_factory=dict)
    pools: dict[int, list[ChurnOutcome]] = field(default_factory=dict)
    fluids: dict[int, float] = field(default_factory=dict)


def run_all(
    timed: Timed,
    policies: Sequence[str],
    loads: Sequence[int],
    seeds: Sequence[int],
    span: Span,
    report_progress: Callable[[str], None],
) -> Campaign:
    """`report_progress` is called before each run. Raises: Unbalanced."""
    found = Campaign(timed, span, tuple(seeds))
    for load in loads:
        found.fluids[load] = fluid_percent(timed, load)
        for seed in seeds:
            ready = Ready(timed, load, seed, span)
            found.pools.setdefault(load, []).append(bound(ready))
            for policy in policies:
                for defragment in (False, True):
                    report_progress(f"{load} %, {policy}{', moving' if defragment else ''}, seed {seed}")
                    key = Variant(load, policy, defragment)
                    found.runs.setdefault(key, []).append(replay(ready, policy, defragment))
    return found


def parse_loads(text: str) -> list[int]:
    """`80,90,95,100`, in per cent of the cluster's GPUs."""
    try:
        loads = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise Failure(Exit.USAGE, f"lab: {text!r} names no loads; write 80,90,95,100") from error
    low, high = LOADS
    wrong = [load for load in loads if not low <= load <= high]
    if wrong:
        raise Failure(Exit.USAGE, f"lab: a load of {wrong[0]} % is not between {low} and {high} %")
    return list(dict.fromkeys(loads))


def parse_span(warmup_days: int, days: int) -> Span:
    if warmup_days < 0 or days < 1 or warmup_days + days > MOST_DAYS:
        raise StartupError(f"--days: a run is 1 to {MOST_DAYS} days with its warm-up, not {warmup_days} and {days}")
    return Span(warmup_days, days)
