"""
Places of pods that terms of other jobs mean, and the conditions on nodes that follow for jobs that wait. Pure.

Jobs that say nothing of other pods, and have no labels for others' terms, are not known here. Runs count from their
allocation to their release; room that is kept for somebody does not. Whenever pods come or go, the conditions are made
anew of those waiting jobs alone to which these pods mean something.
"""

from collections.abc import Iterable, Mapping

from tessera.domain.devices.neighbours import NeighbourTerms
from tessera.domain.entities import Job, Run
from tessera.domain.table import Table
from tessera.domain.work.gang import Gang
from tessera_schemas.work.placement import Placement

PodsByNode = Mapping[str, int]
"""Number of pods on each node."""
StandingPods = tuple[NeighbourTerms, PodsByNode]
WaitingWithTerms = tuple[NeighbourTerms, Mapping[str, None]]


class NeighbourBook:
    """Pods that stand, and jobs that wait, by what they say of other pods. `due` are jobs to be looked at."""

    def __init__(self) -> None:
        self.standing: Table[StandingPods] = Table()
        self.waiting: Table[WaitingWithTerms] = Table()
        self.changed: dict[NeighbourTerms, None] = {}
        self.due: dict[str, None] = {}

    def overlay(self) -> "NeighbourBook":
        """A copy-on-write view."""
        top = NeighbourBook.__new__(NeighbourBook)
        top.standing, top.waiting = self.standing.overlay(), self.waiting.overlay()
        top.changed, top.due = {}, {}
        return top

    @property
    def is_due(self) -> bool:
        """Whether pods came or went, or a job was written, since conditions were last made."""
        return bool(self.changed or self.due)

    def restore(self, jobs: Iterable[Job], runs: Iterable[Run]) -> None:
        """Make the book of all live jobs and runs; the conditions that followed stand in the jobs."""
        for job in jobs:
            self.follow(None, job)
        for run in runs:
            self.stand(run.gang, run.places, 1)
        self.changed.clear()
        self.due.clear()

    def follow(self, old: Job | None, new: Job | None) -> None:
        """A live job was written (`new`), or has ended."""
        before, after = _terms_in(old), _terms_in(new)
        job_id = new.job_id if new is not None else old.job_id if old is not None else ""
        for terms in before - after:
            self._wait(terms, job_id, False)
        for terms in after - before:
            self._wait(terms, job_id, True)
        if after:
            self.due[job_id] = None

    def stand(self, gang: Gang, placements: Iterable[Placement], sign: int) -> None:
        """Pods of a run came (1) or left (-1)."""
        if not gang.has_neighbours:
            return
        by_role = {role.name: role.neighbours for role in gang}
        for placement in placements:
            terms = by_role[placement.role]
            if terms is not None:
                self._stand(terms, placement.node, sign)

    def note_relabelled(self, node: str) -> None:
        """A node may be in other domains now."""
        for _, (terms, nodes) in self.standing.items():
            if node in nodes:
                self.changed[terms] = None

    def _stand(self, terms: NeighbourTerms, node: str, sign: int) -> None:
        key = repr(terms)
        nodes = dict((self.standing.get(key) or (terms, {}))[1])
        nodes[node] = nodes.get(node, 0) + sign
        if not nodes[node]:
            del nodes[node]
        if nodes:
            self.standing.put(key, (terms, nodes))
        else:
            self.standing.drop(key)
        self.changed[terms] = None

    def _wait(self, terms: NeighbourTerms, job_id: str, comes: bool) -> None:
        key = repr(terms)
        jobs = {each: None for each in (self.waiting.get(key) or (terms, {}))[1] if each != job_id}
        jobs |= {job_id: None} if comes else {}
        if jobs:
            self.waiting.put(key, (terms, jobs))
        else:
            self.waiting.drop(key)

    def take_due(self) -> list[str]:
        """Jobs whose conditions may be others now."""
        found = dict(self.due)
        for _, (terms, jobs) in self.waiting.items() if self.changed else ():
            if any(terms.heeds(other) for other in self.changed):
                found |= jobs
        self.changed.clear()
        self.due.clear()
        return list(found)


def _terms_in(job: Job | None) -> set[NeighbourTerms]:
    if job is None or not job.gang.has_neighbours:
        return set()
    return {role.neighbours for role in job.gang if role.neighbours is not None}
