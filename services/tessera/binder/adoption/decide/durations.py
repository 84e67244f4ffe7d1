"""Time limits of users' pods, and the time that they may take to stop. Pure."""

from collections.abc import Sequence

from tessera.binder.adoption.decide.suspending import is_suspended
from tessera.binder.workloads.mark_table import SLURM_TIME_LIMIT, TIME_LIMIT
from tessera.binder.workloads.marks import found_in
from tessera.binder.workloads.reading import items, no, number_in, text, whole
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import slurms_seconds

LIMIT_SECONDS_MAX = 31_536_000
DEADLINE = "activeDeadlineSeconds"
DEADLINES = (("spec",), ("spec", "runPolicy"))
"""Where a batch Job and a training job have theirs; of JobSets the templates do."""
OF_SETS = ("spec", "replicatedJobs", "template", "spec")
GRACE_SECONDS, GRACE_SECONDS_MAX = 30, 3600


def time_limit(pods: Sequence[Json], owner: Json | None) -> int | Reason | None:
    """
    Seconds after which all of them have ended: by their kubelets, or by the mark of Kueue or of slurm-bridge, for which
    reclamation sees to it.

    None where one of them may run for ever.
    """
    marked = [_marked(pod, "metadata") for pod in pods]
    if owner is not None:
        marked = [_marked(owner, f"{text(owner, 'kind')}.metadata") or limit for limit in marked]
    limits: list[int] = []
    for pod, by_mark in zip(pods, marked, strict=True):
        if isinstance(by_mark, Reason):
            return by_mark
        known = [limit for limit in (whole(pod, "spec", DEADLINE), by_mark) if limit]
        # One pod without a limit makes the gang one without: it ends with its last pod.
        if not known:
            return None
        limits.append(min(*known, LIMIT_SECONDS_MAX))
    return max(limits)


def deadlines_that_run(owner: Json) -> list[str]:
    """A sentence about each deadline that the owner's controller counts from before its pods have their nodes."""
    if is_suspended(owner):
        return []
    way_out = "it runs while its pods wait; created suspended, or in a queue with suspend_waiting, it begins later"
    found: list[tuple[str, ...]] = [path for path in DEADLINES if whole(owner, *path, DEADLINE)]
    if any(whole(job, *OF_SETS[2:], DEADLINE) for job in items(owner, *OF_SETS[:2])):
        found += (OF_SETS,)
    return [f"{'.'.join(path)}.{DEADLINE}: {way_out}" for path in found]


def grace(pod: Json) -> int:
    """Grace in seconds for the ledger; the pod itself is evicted with the grace that its spec says, however long."""
    value = whole(pod, "spec", "terminationGracePeriodSeconds")
    return GRACE_SECONDS if value is None else min(value, GRACE_SECONDS_MAX)


def _marked(thing: Json, among: str) -> int | Reason:
    """The shorter of Kueue's longest execution time and slurm-bridge's time limit; 0 for none."""
    limits: list[int] = []
    for mark, read, what in ((TIME_LIMIT, number_in, "number of seconds"), (SLURM_TIME_LIMIT, slurms_seconds, "time")):
        words, field = found_in(thing, mark)
        if words and not read(words):
            return no(Code.INVALID_FIELD, field.replace("metadata", among, 1), f"{words!r} is no {what}")
        limits += [read(words) or 0] if words else []
    return min(limits, default=0)
