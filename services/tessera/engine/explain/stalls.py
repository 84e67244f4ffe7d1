"""Words about a run's progress, and of the ladder on which its job starts again. Pure."""

from collections.abc import Iterator

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera_schemas.reasons import Code
from tessera_schemas.text.units import format_age

CONSEQUENCES = {
    "warn": "a warning says so",
    "restart": "it starts again",
    "elsewhere": "it starts again on other nodes while there is room",
}


def describe_progress(job: Job, run: Run) -> Iterator[str]:
    """Sentences on how a run stalls, or from when on it would count as hung; none where its job asks for neither."""
    rule = job.progress
    if rule is None or run.stopping:
        return
    # Said before anything is wrong, too: whoever wrote `progress` sees whether it was understood.
    if run.stalled is None:
        after = format_age(rule.hang_seconds * 1000)
        yield f"Once its pods have reported progress and then none for {after}, it hangs: {CONSEQUENCES[rule.then]}."
        return
    yield f"It stalls: {run.stalled.sentence()}."
    # A run that stalls and goes on does so by its job's word, or by the brake on mass stops: nothing else keeps it.
    then = rule.then if run.stalled.code is Code.HUNG else rule.straggler_then
    if then == "warn":
        yield "It goes on: its job asks for no more than this warning."
    else:
        yield "It goes on, since too many runs would be stopped at once; it starts again as soon as it may."


def describe_ladder(state: State, job: Job) -> Iterator[str]:
    """The rungs that are left to a job of which runs have failed; nothing without a ladder, or before a failure."""
    ladder = job.retry.ladder
    failures = job.strikes + job.troubles
    if ladder is None or not failures:
        return
    if failures < ladder.in_place:
        yield f"It starts again where it was up to {ladder.in_place} times in a row: {failures} so far (retry.ladder)."
        return
    level = next(reversed(state.tree.levels), "") if ladder.level is None else ladder.level
    widens = ladder.domain_after and level
    more = f", and from {ladder.domain_after} of them in one {level} on all of that" if widens else ""
    yield f"After {failures} failures in a row it avoids the nodes that failed it{more} (retry.ladder)."
