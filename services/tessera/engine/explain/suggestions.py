"""
Suggestions: the smallest single changes that would let a waiting job start now, each of them tried. Pure.

A change is offered only after the what-if said "yes" to the changed job, or after a plan was found whose placement is
proved. At most `TRIES_MAX` are tried, the cheapest for the job's owner first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from tessera.domain.devices.resources import Need, RoleNeed, is_seat
from tessera.domain.entities import Job, Run
from tessera.domain.quota.queue_settings import granted_classes
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import gang_of
from tessera.engine.explain.blockers import Viewer, describe_amount, describe_queue, short_of
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.placement.capacity import nodes_without
from tessera.engine.placement.fits import count_bundles, kind_of, never_fits
from tessera.engine.preemption.plans import Plan, Victim, plan
from tessera.engine.queueing.starting import Choice
from tessera_schemas.facts import PlanCause
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import counted_by, format_memory, format_milli

TRIES_MAX = 96
VALUES_MAX = 8  # queues, classes, drained nodes and runs that are tried, of each kind
PLAN_PODS_MAX = 8  # missing pods up to which victims are searched here; `preempt --dry-run` searches for any job
RUNS_LOOKED_AT = 2_000  # the cheapest ones

AMOUNTS: tuple[tuple[str, str, int, Callable[[int, int], str]], ...] = (
    ("cpu", "cpu_milli", 1000, lambda less, now: f"{format_milli(less)} instead of {format_milli(now)} CPUs"),
    ("memory", "memory_bytes", 2**30, lambda less, now: f"{format_memory(less)} instead of {format_memory(now)}"),
    ("gpus", "gpus", 1, lambda less, now: f"{less} instead of {now} GPUs"),
    ("share", "gpu_milli", 1, lambda less, now: f"{format_milli(less)} instead of {format_milli(now)} GPUs"),
)
"""Amounts of a pod, the cheapest to do without first: kind of change, field, unit to try it in, words for both."""


@dataclass(frozen=True, slots=True)
class TriedChange:
    """
    One change after which the job starts at once on `nodes`; `after` says who has to be gone first, if anybody.

    `kind` is one word for programs: release, cpu, memory, gpus, share, pods, model, topology, spread, together,
    selector, affinity, queue, class, undrain, evict, end. `value` is what a change of the spec sets, in `role` or,
    with "", in all (`changed_spec`).
    """

    kind: str
    text: str
    nodes: tuple[str, ...]
    after: tuple[str, ...] = ()
    role: str = ""
    value: str = ""

    def describe(self) -> str:
        """Words for the change and for where the job goes then; beyond two nodes the rest is a number."""
        some = ", ".join(self.nodes[:2]) + (f" and {len(self.nodes) - 2} more" if len(self.nodes) > 2 else "")
        return f"{self.text}; then it goes to {some}"


def suggest_changes(what_if: WhatIf, job: Job, viewer: Viewer) -> tuple[TriedChange, ...]:
    """The changes that were found, in the order of `WAYS`; none while nothing can be said for certain."""
    # With too many before it a yes would be a guess; with an earmark the job starts there and nowhere else.
    if what_if.crowded or what_if.state.earmarks.get(job.job_id) is not None:
        return ()
    found: list[TriedChange] = []
    # In the order of what it costs the owner: what it can do by itself, then what somebody else has to do, and the end
    # of another's run last.
    for way in WAYS:
        if what_if.tries < TRIES_MAX:
            found += way(what_if, job, viewer)
    if not any(change.kind == "evict" for change in found):
        found += _end_of_one(what_if, job, viewer)
    return tuple(found)


# -- the job as its owner could have written it


def _release(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    if job.held and not (job.operator_hold and viewer.tenant is not None):
        yield from _as(what_if, replace(job, held=False), "release", "let it go (`tessera release`)")


def _less_of_each(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """Tries less of one amount of one role, in its unit where a pod asks for more than one of it."""
    for at, role in enumerate(job.roles):
        for kind, field, unit, words in AMOUNTS:
            now = getattr(role.need, field)
            step = unit if now > unit else 1
            best = _largest(what_if, job, -(-now // step), _setting(job, at, field, step)) if now > step else None
            if best is not None:
                value, choice = best[0] * step, best[1]
                text = f"{words(value, now)} per pod{_describe_role(job, role)}"
                yield _change(kind, text, choice, role=role.name, value=str(value))


def _fewer_pods(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """Tries fewer pods of each role; left out are roles in groups, or whose pods go one by one with another role's."""
    beside = {role.beside for role in job.roles}
    for at, role in enumerate(job.roles):
        if role.replicas == 1 or role.name in beside or role.groups:
            continue
        best = _largest(what_if, job, role.replicas, _with_replicas(job, at))
        if best is not None:
            value, choice = best
            text = f"{value} instead of {role.replicas} pods{_describe_role(job, role)}"
            yield _change("pods", text, choice, role=role.name, value=str(value))


def _any_model(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    if not any(role.need.gpu_models for role in job.roles):
        return
    other = _needs(job, lambda need: replace(need, gpu_models=()))
    choice = _tried(what_if, other)
    if choice is not None:
        named = {placement.node for placement in choice[1]}
        models = sorted({node.gpu_model for node in what_if.state.nodes.found(sorted(named)) if node.gpu_model})
        yield _change("model", f"any GPU model (it would get {' and '.join(models)})", choice)


def _no_rule(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """Tries of the job without one of its placement rules."""
    rules: tuple[tuple[str, str, Callable[[RoleNeed], bool], Callable[[RoleNeed], RoleNeed]], ...] = (
        ("topology", "no topology rule", lambda r: r.bound, lambda r: replace(r, levels=(), bound=False, group="")),
        ("groups", "no topology of its groups", lambda r: any(g[3] for g in r.groups), lambda r: replace(r, groups=())),
        ("spread", "no even spread of its pods", lambda r: bool(r.spread), lambda r: replace(r, spread="", max_skew=1)),
        ("together", "no same_node_as", lambda r: bool(r.beside), lambda r: replace(r, beside="")),
        ("selector", "no node selector", lambda r: bool(r.need.node_selector), _without("node_selector")),
        ("mixed", "several GPU models (mixed_models)", lambda r: bool(r.one_model), lambda r: replace(r, one_model="")),
        ("affinity", "no node affinity", _has_affinity, _without("affinity", "affinity_any")),
        ("apart", "no anti-affinity", _has_seats, _without_seats),
        ("neighbours", "no terms about pods of other jobs", lambda r: bool(r.need.by_pods), _without("by_pods")),
    )
    for kind, text, has, less in rules:
        if any(has(role) for role in job.roles):
            roles = tuple(less(role) for role in job.roles)
            yield from _as(what_if, replace(job, roles=roles), kind, text)


def _other_queue(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """A queue that the job's tenant may use."""
    tree, tried = what_if.state.tree, 0
    for name in sorted(tree.queues):
        open_to = tree.queues[name].tenants
        if name == job.queue or tree.pool(name) is None or (open_to and job.tenant not in open_to):
            continue
        tried += 1
        if tried > VALUES_MAX:
            return
        yield from _as(what_if, replace(job, queue=name), "queue", f"queue {name} instead of {job.queue}", name)


def _higher_class(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """The lowest class granted to the tenant that lets it start at once."""
    for name in _classes_above(what_if.state, job):
        found = list(_as(what_if, replace(job, priority_class=name), "class", f"priority class {name}", name))
        if found:
            yield found[0]
            return


# -- what others would have to do


def _undrained(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    state = what_if.state
    for name in sorted(name for name, _ in state.drains.items())[:VALUES_MAX]:
        node = state.nodes.get(name)
        if node is not None and node.ready:
            choice = _keep_choice(what_if.after(job, undrained=name))
            if choice is not None and any(placement.node == name for placement in choice[1]):
                yield _change("undrain", f"node {name} is made common again (`tessera undrain {name}`)", choice)
                return


def _plan(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """Evictions under the preset in force: as it is, else in the lowest class granted that has a plan."""
    verdict = what_if.verdict(job)
    if what_if.gate(job) is not None or not isinstance(verdict, Reason):
        return
    if job.pods - verdict.numbers.get("pods_placed", 0) > PLAN_PODS_MAX:
        return
    classes = list(_classes_above(what_if.state, job))
    for name in ["", *classes][: VALUES_MAX // 2]:
        other = replace(job, priority_class=name) if name else job
        made = planned(what_if.state, other)
        if made is not None:
            whom = _whom(made.victims, viewer)
            text = f"priority class {name}, which evicts {whom}" if name else f"evicting {whom}"
            after = tuple(victim.run_id for victim in made.victims if viewer.may_see(victim.tenant))
            nodes = tuple(sorted({placement.node for placement in made.placements}))
            yield TriedChange("class" if name else "evict", text, nodes, after, value=name)
            return


def planned(state: State, job: Job) -> Plan | None:
    """The plan that preemption or reclamation would propose; lent quota is taken back first."""
    causes: tuple[PlanCause, ...] = ("reclaim", "preemption")
    for cause in causes:
        made = plan(state, job, state.ts, cause)
        if isinstance(made, Plan):
            return made
    return None


def _end_of_one(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[TriedChange]:
    """The end of one run, whoever brings it about: the lowest class first, then the smallest, then the youngest."""
    for run in islice(_in_the_way(what_if, job), VALUES_MAX):
        choice = _keep_choice(what_if.after(job, gone=(run,)))
        if choice is not None:
            seen, short = viewer.may_see(run.tenant), "gpu_milli" if job.reason is None else short_of(job, job.reason)
            who = (
                f"{_name(what_if.state, run)} ({run.run_id})"
                if seen
                else f"a run of {describe_queue(viewer.queue(run.queue))}"
            )
            text = f"the end of {who}, which holds {describe_amount(run.amount, short)}"
            yield _change("end", text, choice, (run.run_id,) if seen else ())
            return


def _in_the_way(what_if: WhatIf, job: Job) -> Iterator[Run]:
    """Runs whose end might be enough: those that free the quota, or room for all pods that are missing, first."""
    state, verdict = what_if.state, what_if.verdict(job)
    if not isinstance(verdict, Reason):
        return
    runs = sorted((run for run in state.runs.values() if not run.stopping), key=lambda run: _cheapest(state, run))
    if verdict.code is Code.WAITING_FOR_QUOTA:
        root, missing = state.tree.roots.get(job.queue), verdict.numbers["wanted"] - verdict.numbers["available"]
        resource = counted_by(verdict.field)
        yield from (
            run for run in runs if state.tree.roots.get(run.queue) == root and run.amount.of(resource) >= missing
        )
        return
    need = max((role.need for role in job.roles), key=lambda need: need.total_gpu_milli)
    missing = job.pods - verdict.numbers.get("pods_placed", 0)
    # Each look counts bundles on all nodes of a run, so that only the cheapest runs are looked at; the largest kind of
    # pods stands for the gang, since it finds room last.
    gains = [(run, _gain(state, run, need)) for run in runs[:RUNS_LOOKED_AT]]
    # Enough for all that is missing before less than that: less may do, too, since pods that fit already may lie
    # elsewhere then.
    yield from (run for run, gain in gains if gain >= missing)
    yield from (run for run, gain in gains if 0 < gain < missing)


def _cheapest(state: State, run: Run) -> tuple[int, int, int, str]:
    return _priority(state, run), run.amount.gpu_milli, -run.allocated_ts, run.run_id


def _gain(state: State, run: Run, need: Need) -> int:
    """Number of further pods that fit on its nodes without the run."""
    gain, kind = 0, kind_of((need,))
    for name, node in nodes_without(state, run).items():
        now = state.nodes.get(name)
        if now is not None and never_fits(need, node) is None:
            gain += count_bundles(kind, node) - count_bundles(kind, now)
    return gain


# -- trying


Way = Callable[[WhatIf, Job, Viewer], Iterator[TriedChange]]

WAYS: tuple[Way, ...] = (
    _release,
    _less_of_each,
    _fewer_pods,
    _any_model,
    _no_rule,
    _other_queue,
    _higher_class,
    _undrained,
    _plan,
)


def _tried(what_if: WhatIf, job: Job) -> Choice | None:
    return _keep_choice(what_if.verdict(job)) if what_if.tries < TRIES_MAX else None


def _keep_choice(verdict: Choice | Reason) -> Choice | None:
    return None if isinstance(verdict, Reason) else verdict


def _as(what_if: WhatIf, job: Job, kind: str, text: str, value: str = "") -> Iterator[TriedChange]:
    choice = _tried(what_if, job)
    if choice is not None:
        yield _change(kind, text, choice, value=value)


def _largest(what_if: WhatIf, job: Job, below: int, other: Callable[[int], Job]) -> tuple[int, Choice] | None:
    """The largest value from 1 to `below` - 1 with which it starts, halving: what fits less than a value fits it."""
    # The least value first: where even that does not start, the halving is saved.
    choice = _tried(what_if, other(1))
    if choice is None:
        return None
    low, high = (1, choice), below
    while high - low[0] > 1:
        middle = (low[0] + high) // 2
        choice = _tried(what_if, other(middle))
        if choice is None:
            high = middle
        else:
            low = middle, choice
    return low


def _setting(job: Job, at: int, field: str, unit: int = 1) -> Callable[[int], Job]:
    def other(value: int) -> Job:
        role = job.roles[at]
        return _with_role(job, at, replace(role, need=replace(role.need, **{field: value * unit})))

    return other


def _with_replicas(job: Job, at: int) -> Callable[[int], Job]:
    return lambda value: _with_role(job, at, replace(job.roles[at], replicas=value))


def _with_role(job: Job, at: int, role: RoleNeed) -> Job:
    gang = gang_of((*job.roles[:at], role, *job.roles[at + 1 :]))
    return replace(job, roles=gang, amount=gang.amount)


def _has_affinity(role: RoleNeed) -> bool:
    return bool(role.need.affinity or role.need.affinity_any)


def _has_seats(role: RoleNeed) -> bool:
    return any(is_seat(name) for name, _ in role.need.devices)


def _without_seats(role: RoleNeed) -> RoleNeed:
    devices = tuple(each for each in role.need.devices if not is_seat(each[0]))
    return replace(role, need=replace(role.need, devices=devices))


def _without(*fields: str) -> Callable[[RoleNeed], RoleNeed]:
    return lambda role: replace(role, need=replace(role.need, **dict.fromkeys(fields, ())))


def _needs(job: Job, other: Callable[[Need], Need]) -> Job:
    return replace(job, roles=tuple(replace(role, need=other(role.need)) for role in job.roles))


def _change(
    kind: str, text: str, choice: Choice, after: tuple[str, ...] = (), *, role: str = "", value: str = ""
) -> TriedChange:
    return TriedChange(kind, text, tuple(sorted({placement.node for placement in choice[1]})), after, role, value)


def _describe_role(job: Job, role: RoleNeed) -> str:
    return f" in role {role.name}" if len(job.roles) > 1 else ""


def _classes_above(state: State, job: Job) -> Iterator[str]:
    """Granted to the tenant, the lowest first; adopted work has its priority from Kubernetes."""
    if job.adopted is not None:
        return
    tree = state.tree
    now = tree.priority(job.priority_class)
    above = [name for name in granted_classes(tree, job.tenant) if tree.priority(name) > now]
    yield from sorted(above, key=lambda name: (tree.priority(name), name))[:VALUES_MAX]


def _whom(victims: tuple[Victim, ...], viewer: Viewer) -> str:
    """Names as far as they may be seen, at most two."""
    named = [victim.run_id for victim in victims if viewer.may_see(victim.tenant)][:2]
    rest = len(victims) - len(named)
    more = f"{rest} more" if named else f"{rest} of other tenants"
    return ("runs " if len(victims) > 1 else "run ") + ", ".join([*named, *([more] if rest else [])])


def _name(state: State, run: Run) -> str:
    job = state.jobs.get(run.job_id)
    return job.name if job is not None else run.job_id


def _priority(state: State, run: Run) -> int:
    return state.tree.priority_of(state.jobs.get(run.job_id))
