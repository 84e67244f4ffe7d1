"""
Pods that move between the elastic roles of one run, as its owner asks: which ones leave, and where the others start.

What leaves is judged when it is asked for: the pods that come have to fit on the GPUs of those that go, so that the run
holds no more GPUs at any time than before, and nobody else gets them in between. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.domain.devices.resources import NOTHING, Amount, Node, RoleNeed
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import gang_of
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.placement.capacity import is_closed
from tessera.engine.placement.fits import closed
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.preemption.growth import may_have, one_more, place_one_more
from tessera.engine.queueing.readiness import quota_reason
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement


@dataclass(frozen=True, slots=True)
class RoleShift:
    """Pods that leave, pods by role for which they do, and the sizes up to which roles grow by themselves from then."""

    ranks: tuple[int, ...]
    gains: dict[str, int]
    sizes: dict[str, int]


def sizes_now(run: Run) -> dict[str, int]:
    """Number of pods of each role that the run goes on with."""
    going = {extra.placement.rank for extra in run.extra if extra.leaving}
    return Counter(place.role for place in run.places if place.rank not in going)


def shift_faults(state: State, job: Job, key: str, steps: Mapping[str, int], have: Mapping[str, int]) -> list[Reason]:
    """All reasons against a request at `state`; none against a repeat, which changes nothing."""
    run = state.runs.get(job.run_id)
    found = [] if run is not None and key in run.shifts else plan_shift(state, job, steps, have)
    return [] if isinstance(found, RoleShift) else found


def plan_shift(state: State, job: Job, steps: Mapping[str, int], have: Mapping[str, int]) -> RoleShift | list[Reason]:
    """The shift that a request comes to, or all reasons against it."""
    run = state.runs.get(job.run_id)
    if run is None or run.stopping or not run.started:
        return [Reason(code=Code.NOT_RUNNING, field="job_id", detail=job.phase.value)]
    # Its owner would make anew what leaves, and count nothing of what comes.
    if job.adopted is not None:
        detail = f"{job.adopted.owner} makes its pods; change their numbers in Kubernetes"
        return [Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail)]
    # One at a time: a second one would be judged on room that the first one still holds.
    if run.shift_ranks:
        numbers = {"pods_leaving": len(run.shift_ranks)}
        return [Reason(code=Code.SHIFT_UNDER_WAY, field="job_id", numbers=numbers)]
    now = sizes_now(run)
    against = [*_faults(run, now, steps), *_stale(now, have)]
    if against:
        return against
    lowered, raised = ({name: step for name, step in sorted(steps.items()) if step * sign > 0} for sign in (-1, 1))
    # Roles that are not named keep the bound of an earlier shift: this one says nothing of them.
    kept = {name: most for name, most in run.sizes if name not in steps}
    sizes = kept | {name: now[name] + step for name, step in lowered.items()}
    # Nothing leaves, so that no room is handed on: the role may grow by itself again, within quota as ever.
    if not lowered:
        return RoleShift((), {}, sizes)
    return _first_that_fits(state, run, lowered, RoleShift((), raised, sizes))


def _faults(run: Run, now: Mapping[str, int], steps: Mapping[str, int]) -> list[Reason]:
    """Reasons against steps of single roles."""
    found, roles = list[Reason](), {role.name: role for role in run.roles}
    for name, step in sorted(steps.items()):
        role, field = roles.get(name), f"roles.{name}"
        if role is None or not step:
            detail = f"there are {', '.join(roles)}" if role is None else "0 changes nothing"
            found.append(Reason(code=Code.INVALID_FIELD, field=field, detail=detail))
        elif not role.more:
            found.append(Reason(code=Code.NOT_ELASTIC, field=field, numbers={"pods": now.get(name, 0)}))
        elif role.name in run.gang.growing:
            detail = "its pods come and go in copies of a group, and not one by one"
            found.append(Reason(code=Code.INVALID_FIELD, field=field, detail=detail))
        elif not role.replicas <= now.get(name, 0) + step <= role.replicas + role.more:
            numbers = {"pods": now.get(name, 0), "least": role.replicas, "most": role.replicas + role.more}
            found.append(Reason(code=Code.OUTSIDE_ROLE_BOUNDS, field=field, numbers=numbers))
    return found


def _stale(now: Mapping[str, int], have: Mapping[str, int]) -> list[Reason]:
    """Reasons against a request that was made for other sizes."""
    return [
        Reason(code=Code.ROLE_COUNT_STALE, field=f"have.{name}", numbers={"pods": now.get(name, 0), "said": said})
        for name, said in sorted(have.items())
        if now.get(name, 0) != said
    ]


def _first_that_fits(state: State, run: Run, lowered: Mapping[str, int], asked: RoleShift) -> RoleShift | list[Reason]:
    """The newest pods leave; where the others do not fit on what these hold, those that stand most together."""
    per_node = Counter((extra.placement.role, extra.placement.node) for extra in run.surplus)
    against = list[Reason]()
    # The newest have done the least work. What they leave may be in pieces, where whole nodes are wanted.
    for by_node in (False, True):
        ranks = list[int]()
        for name, step in lowered.items():
            own = [extra.placement for extra in run.surplus if extra.placement.role == name]
            own.sort(key=lambda p: (-per_node[p.role, p.node] if by_node else 0, p.node if by_node else "", -p.rank))
            ranks += [place.rank for place in own[:-step]]
        shift = RoleShift(tuple(sorted(ranks)), asked.gains, asked.sizes)
        why = _lacks(state, run, shift)
        if why is None:
            return shift
        against = [why]
    return against


def _lacks(state: State, run: Run, shift: RoleShift) -> Reason | None:
    """Why what these pods hold does not do for those that are to come; None where it does."""
    gone = [extra.placement for extra in run.extra if extra.placement.rank in shift.ranks]
    # Without a free GPU, so that only what the leaving pods hold is there to be had.
    nodes = {node.name: _full(node) for node in state.nodes.found(dict.fromkeys(place.node for place in gone))}
    run.gang.take(nodes, gone, -1)
    # Those that stay count for rules of the whole gang, such as one GPU model, though they free nothing.
    staying = [place for place in run.places if place.rank not in shift.ranks]
    found, why = _places(state, run, dict(shift.gains), nodes, staying)
    if why is not None:
        return why
    more, freed = run.gang.amount_of(found), run.gang.amount_of(gone)
    over = None if _within(more, freed) else _book_without(state, run, freed).over(run.queue, run.flavor, more)
    return None if over is None else quota_reason(over)


def _full(node: Node) -> Node:
    """The node without a free GPU."""
    return closed(node, range(len(node.gpu_free)))


def _book_without(state: State, run: Run, freed: Amount) -> QuotaBook:
    book = state.quota_book()
    book.add(run.queue, run.flavor, freed, -1)
    return book


def _within(more: Amount, freed: Amount) -> bool:
    """Whether a run that gives `freed` up and gets `more` holds no more of anything than before."""
    plain = all(getattr(more, name) <= getattr(freed, name) for name in ("cpu_milli", "memory_bytes", "gpu_milli"))
    return plain and not more.device_classes


def _places(
    state: State, run: Run, gains: Mapping[str, int], nodes: Mapping[str, Node], staying: Sequence[Placement]
) -> tuple[list[Placement], Reason | None]:
    """Places of these pods on these nodes, as many as fit, and why the next one does not; the ranks are the next."""
    rank, pool = run.next_rank or len(run.placements), state.tree.pool(run.queue) or ""
    # A node that is drained or cordoned keeps what runs there, and takes nothing new, not even of the same run.
    shut = shut_for(state, state.jobs.get(run.job_id))
    closed = {name for name in nodes if name in shut or is_closed(state, name)}
    there = [replace(node, ready=False) if name in closed else node for name, node in nodes.items()]
    capacity = FreeCapacity(there, scoring=find_scoring_policy(state, pool))
    places = list[Placement]()
    roles: dict[str, RoleNeed] = {role.name: role for role in run.roles}
    for name, count in sorted(gains.items()):
        one = gang_of((one_more(state, run, roles[name]),))
        for _ in range(count):
            found = place_one_more(one, capacity, (*staying, *places))
            if isinstance(found, Reason):
                return places, found
            places.append(replace(found[0], rank=rank + len(places)))
    return places, None


def places_of_gains(state: State, run: Run, before: Run) -> list[Placement]:
    """
    Places of the pods for which others of the run were released just now; `before` is the run with these.

    What is beyond the resources of those has to be within the quota by now, and is left to growth where it is not.
    """
    gone = [place for place in before.places if place.rank not in {each.rank for each in run.places}]
    left = [extra.placement for extra in before.extra if extra.placement.rank in before.shift_ranks]
    nodes = {node.name: node for node in state.nodes.found(dict.fromkeys(place.node for place in (*gone, *left)))}
    places, _ = _places(state, run, dict(before.gains), nodes, run.places)
    # Quota may have been given to others since the request: what is not covered by what left is asked for again.
    freed, more, kept, book = run.gang.amount_of(gone), NOTHING, list[Placement](), state.quota_book()
    for place in places:
        more = more.plus(run.gang.amount_of((place,)))
        is_over = not _within(more, freed) and book.over(run.queue, run.flavor, more) is not None
        if is_over or (not _within(more, freed) and not may_have(state, run, more)):
            break
        kept.append(place)
    return kept
