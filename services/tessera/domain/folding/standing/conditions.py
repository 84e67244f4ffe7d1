"""Conditions on nodes for waiting jobs, made anew where pods that mean something to them came or went. Pure."""

from collections.abc import Iterable

from tessera.domain.devices.neighbours import NeighbourTerms, NodeConditions, NodePreferences, PodsMeant
from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Run
from tessera.domain.folding.standing import NeighbourBook
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.domain.work.phases import Phase

WAITING = (Phase.QUEUED, Phase.EVICTING)
"""Phases in which a job has yet to be given nodes; with nodes it keeps the conditions under which it got them."""


def keep_neighbours(state: State) -> None:
    """Give waiting jobs the conditions that follow from where other jobs' pods stand now."""
    jobs = state.jobs.found(state.neighbours.take_due())
    domains = _Domains(state, state.neighbours)
    for job in jobs:
        if job.phase not in WAITING:
            continue
        gang = (domains if (run := state.runs.get(job.run_id)) is None else _without(state, run)).bind(job.gang)
        if gang is not job.gang:
            state.put_job(replace(job, roles=gang))
    state.neighbours.due.clear()


def _without(state: State, run: Run) -> "_Domains":
    """Domains as they are without the pods of a run: a job that may mean itself keeps out of no domain for these."""
    book = state.neighbours.overlay()
    book.stand(run.gang, run.places, -1)
    return _Domains(state, book)


class _Domains:
    """Domains in which pods stand, of one state."""

    def __init__(self, state: State, book: NeighbourBook) -> None:
        self._state, self._standing = state, list(book.standing.values())
        self._made: dict[NeighbourTerms, tuple[NodeConditions, NodePreferences]] = {}

    def bind(self, gang: Gang) -> Gang:
        """The gang with the conditions that follow for its roles now."""
        roles = tuple(self._bind(role, role.neighbours) for role in gang)
        return gang if roles == tuple(gang) else gang_of(roles)

    def _bind(self, role: RoleNeed, terms: NeighbourTerms | None) -> RoleNeed:
        if terms is None:
            return role
        made = self._made.get(terms)
        if made is None:
            made = self._made[terms] = self._required(terms), self._preferred(terms)
        if (role.need.by_pods, role.need.affinity_preferred) == made:
            return role
        return replace(role, need=replace(role.need, by_pods=made[0], affinity_preferred=made[1]))

    def _required(self, terms: NeighbourTerms) -> NodeConditions:
        out = dict[str, set[str]]()
        for term in terms.apart_from:
            if not term.weight:
                out.setdefault(term.at, set()).update(self._values(term, terms.tenant))
        for other, nodes in self._standing:
            for at in other.bars(terms):
                out.setdefault(at, set()).update(self._values_of(nodes, at))
        found = [(at, "NotIn", tuple(sorted(values))) for at, values in out.items() if values]
        for term in terms.near:
            if not term.weight:
                values = self._values(term, terms.tenant)
                # The first of pods that are to be near each other has nobody to be near to.
                is_first = not values and term.selects(terms.labels)
                found.append((term.at, "Exists", ()) if is_first else (term.at, "In", tuple(sorted(values))))
        return tuple(sorted(found))

    def _preferred(self, terms: NeighbourTerms) -> NodePreferences:
        found = [*terms.preferred]
        for operator, wanted in (("NotIn", terms.apart_from), ("In", terms.near)):
            for term in wanted:
                if term.weight and (values := self._values(term, terms.tenant)):
                    found.append((term.weight, ((term.at, operator, tuple(sorted(values))),)))
        return tuple(sorted(found))

    def _values(self, term: PodsMeant, tenant: str) -> set[str]:
        meant = (nodes for other, nodes in self._standing if other.tenant == tenant and term.selects(other.labels))
        return set[str]().union(*(self._values_of(nodes, term.at) for nodes in meant))

    def _values_of(self, nodes: Iterable[str], at: str) -> set[str]:
        return {value for node in self._state.nodes.found(nodes) if (value := node.label(at)) is not None}
