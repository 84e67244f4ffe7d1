"""Many runs: policies times seeds on a trace, one after the other, with a word about each."""

from collections.abc import Callable, Sequence

from tessera.client.outcomes import Exit, Failure
from tessera_lab.pack.learning import DEFAULT
from tessera_lab.pack.replay import POLICIES, FillingRun, replay
from tessera_lab.pack.window import Window
from tessera_lab.traces.alibaba import Trace

SEEDS_MAX = 1000


def run_all(
    trace: Trace,
    policies: Sequence[str],
    seeds: Sequence[int],
    causes: bool,
    report_progress: Callable[[str, int], None],
    window: Window | None = None,
) -> dict[str, list[FillingRun]]:
    """The runs by policy, in the order asked for; causes are read in the first run of each alone."""
    found: dict[str, list[FillingRun]] = {}
    for policy in policies:
        for number, seed in enumerate(seeds):
            report_progress(policy, seed)
            found.setdefault(policy, []).append(replay(trace, policy, seed, causes and number == 0, window=window))
    return found


def parse_policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        what = f"no policy is called {unknown[0]}" if unknown else "no policy is named"
        raise Failure(Exit.USAGE, f"lab: {what}; there are {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def parse_window(waiting: int | None, delay: int, policies: Sequence[str]) -> Window | None:
    """The window of a queue that may reorder; who goes next is told by prices, which the default policy alone has."""
    if waiting is None:
        return None
    others = [policy for policy in policies if policy != DEFAULT]
    if others:
        raise Failure(Exit.USAGE, f"lab: --window is for the policy {DEFAULT} alone, not for {others[0]}")
    return Window(waiting, delay)


def parse_seeds(text: str) -> list[int]:
    """`42-51`, `1,2,5` or both."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last if dash else first) + 1)[: SEEDS_MAX + 1]
    except ValueError as error:
        raise Failure(Exit.USAGE, f"lab: {text!r} names no seeds; write 42-51 or 1,2,5") from error
    if not seeds:
        raise Failure(Exit.USAGE, f"lab: {text!r} names no seeds; write 42-51 or 1,2,5")
    if len(seeds) > SEEDS_MAX:
        raise Failure(Exit.USAGE, f"lab: {text!r} names more than {SEEDS_MAX} seeds, one run each; name fewer")
    return seeds
