"""
Names of a configuration that live jobs still use: the one check of whether the next one would strand work.

In: live jobs, the configuration in force and the next one. Out: a reason for each name that the next one takes away
and that live jobs have, with their numbers and the way out. What is stranded already is no fault of the next one.
Pure: the committer asks with its state, `tessera apply` with the views.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera_schemas.config import ConfigBody
from tessera_schemas.reasons import Code, Reason

KEEP = "keep it until they have ended"
WAYS_OUT = {
    "queues": "or move what waits with `tessera queue move`; `--abandon`: runs borrow, what waits is NoSuchQueue",
    "tenants": f"{KEEP}; `--abandon`: runs go on, what waits is NoSuchTenant until the tenant is back",
    "priority_classes": "or use `tessera prio`; `--abandon`: they count as the lowest class there is",
    "flavors": f"{KEEP}; `--abandon`: runs go on and count by the flavors that are left",
}
RENAMED = "say `was: {name}` on what takes its place"


@dataclass(frozen=True, slots=True)
class LiveJob:
    """Names of a live job, or of `count` tasks of an array that are not queued yet; adopted jobs have no class."""

    queue: str
    tenant: str
    priority_class: str
    flavor: str
    runs: bool
    count: int = 1


def live_jobs(state: State) -> Iterator[LiveJob]:
    """The live jobs of a state; a flavor is that of the job's run or earmark."""
    for job in state.jobs.values():
        holds = state.runs.get(job.run_id) or state.earmarks.get(job.job_id)
        count = 1 if job.array is None else job.array.left
        name = job.priority_class if job.adopted is None else ""
        flavor = "" if holds is None else holds.flavor
        yield LiveJob(job.queue, job.tenant, name, flavor, job.phase is not Phase.QUEUED, count)


def find_stranded(live: Iterable[LiveJob], now: ConfigBody | None, wanted: ConfigBody) -> list[Reason]:
    """A reason for each name that `wanted` takes away, gives no new name, and live jobs have; `live` is read once."""
    lost = lost_names(now, wanted)
    if not lost:
        return []
    waiting, running = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for job in live:
        named = (job.queue, job.tenant, job.priority_class, job.flavor)
        for kind, name in zip(WAYS_OUT, named, strict=True):
            if name in lost.get(kind, ()):
                (running if job.runs else waiting)[kind, name] += job.count
    found = sorted((waiting + running).keys())
    return [_reason(kind, name, waiting[kind, name], running[kind, name], wanted) for kind, name in found]


def lost_names(now: ConfigBody | None, wanted: ConfigBody) -> dict[str, set[str]]:
    """The names that `wanted` takes away and gives no new name, by kind; empty where nothing is taken away."""
    lost = {} if now is None else {kind: _lost(kind, now, wanted) for kind in WAYS_OUT}
    return {kind: names for kind, names in lost.items() if names}


def _lost(kind: str, now: ConfigBody, wanted: ConfigBody) -> set[str]:
    lost = _names(kind, now) - _names(kind, wanted)
    if kind in ("queues", "priority_classes"):
        lost -= {entry.was for entry in getattr(wanted, kind)}
    return lost


def _names(kind: str, body: ConfigBody) -> set[str]:
    """The names that jobs may have; of queues, those that take jobs."""
    names = {entry.name for entry in getattr(body, kind)}
    return names - {queue.parent for queue in body.queues} if kind == "queues" else names


def _reason(kind: str, name: str, waiting: int, running: int, wanted: ConfigBody) -> Reason:
    is_inner = kind == "queues" and any(queue.name == name for queue in wanted.queues)
    what = "it gets queues below it, and only those take jobs" if is_inner else "it is taken out"
    renamed = RENAMED.format(name=name) + ", " if kind in ("queues", "priority_classes") else ""
    return Reason(
        code=Code.STILL_IN_USE,
        field=f"{kind}.{name}",
        numbers={"waiting": waiting, "running": running},
        detail=f"{what}: {renamed}{WAYS_OUT[kind]}",
    )
