"""
Free capacity of a pool in terms that people use: how many slots of 1, 2, 4, 8 … GPUs, the largest gang of such
pods that could start now by topology domain, and idle GPUs by what keeps them from use.

A slot of k GPUs is a pod with k whole GPUs that asks for no more CPU and memory for each than the leanest that any live
job of the pool asks for: so no slot that is missing here could be had by anybody. Causes are thousandths of GPUs and
add up to the idle ones exactly; idle is what no run holds. Exact integers, from the nodes as decisions see them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tessera.domain.devices.free_slots import NodeCauses, Size, Slots, Stranded, Unclaimed, Unused
from tessera.domain.devices.offers import ClassUse, sum_classes
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.entities import Earmark
from tessera.domain.health.spares import find_spares
from tessera.domain.quota.idle import idle_policy
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.stops import pool_of
from tessera.engine.ahead.booked_nodes import is_well, shut_now
from tessera.engine.claims.extended import serves_whole_gpus
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.fits import BundleKind, count_bundles, fits, kind_of, never_fits, never_key
from tessera.engine.placement.mig import free_positions, held_by_others
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.reasons import Code

LEVELS_MAX = 4
NOTHING_KEPT: Mapping[str, Stranded] = {}
NODE_LEVEL, POOL_LEVEL, MODEL_LEVEL = "node", "pool", "model"


@dataclass(frozen=True, slots=True)
class RequestedShapes:
    """
    Requests of a pool's live jobs: needs of whole GPUs, of shares, and the least per GPU. `levels` are topology
    levels with their labels.
    """

    whole: tuple[Need, ...]
    parts: tuple[Need, ...]
    levels: tuple[tuple[str, str], ...]

    def slot(self, gpus: int) -> BundleKind:
        """The kind of a pod of so many GPUs, as lean as there are any."""
        # The least of each on its own, even from different jobs: a bound from below, so that a slot that is missing
        # here is missing for everybody. Rounded up, since a job that asks for 7 on 2 GPUs would not live on 3 each.
        cpu = min((-(-need.cpu_milli // need.gpus) for need in self.whole), default=0)
        memory = min((-(-need.memory_bytes // need.gpus) for need in self.whole), default=0)
        return kind_of((Need(cpu * gpus, memory * gpus, gpus),))


def slots(state: State, pool: str) -> Slots:
    """Free slots of the pool now."""
    return slots_by_node(state, pool)[0]


def slots_by_node(state: State, pool: str) -> tuple[Slots, list[NodeCauses]]:
    """Free slots of the pool now, and the same causes apart for each node that has idle GPUs."""
    tally = tally_of(state, pool)
    nodes = list[NodeCauses]()
    for node in nodes_for(state, pool, "", shut=shut_now(state, pool)):
        found = tally.add(node)
        if causes := tuple((cause, found[cause]) for cause in Stranded if found[cause]):
            nodes.append(NodeCauses(node.name, pool, causes))
    return replace(tally.sum(), unused=unused(state, pool), unclaimed=unclaimed(state, pool)), nodes


def slots_for(state: State, pool: str, role: RoleNeed) -> Size:
    """
    Number of pods of this role that could start now in the pool, and the most in one domain of each topology level.

    Exact for devices, CPU, memory and places; that a gang is on one GPU model and in one domain counts in `largest`
    alone, and quota is not looked at. `gpus` are those of one pod.
    """
    need, levels = role.need, [(name, label) for name, label in reversed(state.tree.levels.items())][:LEVELS_MAX]
    kind, found = kind_of((need,)), Counter[tuple[str, str]]()
    for node in nodes_for(state, pool, "", shut=shut_now(state, pool)):
        suits = node.ready and not node.gone and never_fits(need, node) is None
        if not suits or (count := count_bundles(kind, node)) <= 0:
            continue
        found.update({(POOL_LEVEL, ""): count, (NODE_LEVEL, node.name): count})
        found.update({(name, f"{at} {node.gpu_model}"): count for name, label in levels if (at := node.label(label))})
    largest = dict.fromkeys((NODE_LEVEL, *(name for name, _ in levels)), 0)
    for (level, _), count in found.items():
        if level in largest:
            largest[level] = max(largest[level], count)
    return Size(need.gpus, found[POOL_LEVEL, ""], tuple(largest.items()))


def unclaimed(state: State, pool: str) -> Unclaimed:
    """
    Why GPUs of the pool that can be had are free. Jobs that were not looked at yet, or wait for their turn alone, say
    nothing as long as others do. Jobs whose queue or tenant was taken out of the configuration are of no pool, and
    speak last.
    """
    waiting = quota = False
    for queue in sorted(state.tree.queues_of.get(pool, ())):
        for place in state.index.waiting.get(queue, ()):
            waiting = True
            job = state.jobs.get(place[-1])
            code = None if job is None or job.reason is None else job.reason.code
            if code is Code.WAITING_FOR_QUOTA:
                quota = True
            elif code not in (None, Code.WAITING_FOR_TURN):
                return Unclaimed.JOBS_WAIT
    if quota:
        return Unclaimed.QUOTA
    if waiting:
        return Unclaimed.JOBS_WAIT
    strays = (job for job_id in state.index.strays if (job := state.jobs.get(job_id)) is not None)
    abandoned = any(job.phase is Phase.QUEUED and not state.tree.takes(job) for job in strays)
    return Unclaimed.ABANDONED if abandoned else Unclaimed.NOTHING_WAITS


def unused(state: State, pool: str) -> Unused:
    """Amount held by runs of the pool that were warned for idleness and have not used a GPU since."""
    idle = [
        run
        for run in state.runs.values()
        if run.idle_ts
        and not run.stopping
        and pool_of(state, run.queue) == pool
        and idle_policy(state.tree, run.queue, state.jobs.get(run.job_id)).action != "off"
    ]
    return Unused(len(idle), sum(run.amount.gpu_milli for run in idle))


def asked(state: State, pool: str) -> RequestedShapes:
    """Over all jobs of the pool that have not ended. Of topology levels those with a name, then a few of the jobs'."""
    gangs = {job.gang for job in state.jobs.values() if state.tree.pool(job.queue) == pool}
    roles = {role for gang in gangs for role in gang if role.need.total_gpu_milli}
    needs = sorted({role.need for role in roles}, key=repr)
    named = [(name, label) for name, label in reversed(state.tree.levels.items())]
    others = {label for role in roles for label in role.levels} - {label for _, label in named}
    levels = [*named, *((label, label) for label in sorted(others))][:LEVELS_MAX]
    return RequestedShapes(tuple(n for n in needs if n.gpus), tuple(n for n in needs if not n.gpus), tuple(levels))


class Tally:
    """Takes the nodes of a pool one after the other; between two of them others may go on."""

    def __init__(
        self, pool: str, wanted: RequestedShapes, marks: Iterable[Earmark], kept: Mapping[str, Stranded] = NOTHING_KEPT
    ) -> None:
        self._pool, self._asked, self._kept_nodes = pool, wanted, kept
        self._whole, self._parts = _alike(wanted.whole), _alike(wanted.parts)
        self._slot = lru_cache(maxsize=None)(wanted.slot)
        self._kept: Counter[tuple[str, int]] = Counter()
        for mark in marks:
            for placement in mark.placements:
                self._kept.update({(placement.node, device): placement.gpu_milli for device in placement.devices})
        self._stranded: Counter[Stranded] = Counter()
        self._gpus = self._most = 0
        self._models = set[str]()
        self._free: dict[int, Counter[tuple[str, str]]] = {}
        self._classes: list[ClassUse] = []

    def add(self, node: Node) -> Counter[Stranded]:
        """
        Counts one node: GPUs, free slots and what strands idle GPUs; a node that is gone counts nothing.

        Returns its idle thousandths of GPUs by cause.
        """
        if node.gone:
            return Counter()
        if node.offer is not None:
            self._classes = sum_classes((*self._classes, *node.device_classes))
        if not node.gpus:
            return Counter()
        self._gpus, self._most = self._gpus + node.gpus, max(self._most, node.gpus)
        suited = _suited(self._whole, node), _suited(self._parts, node)
        causes = self._causes(node, *suited)
        self._stranded.update(dict(causes))
        wanted = suited[0] if self._asked.whole else suited[1] or not self._asked.parts
        if node.ready and serves_whole_gpus(node) and wanted:
            self._count(node)
        return causes

    def _causes(self, node: Node, whole: list[Need], parts: list[Need]) -> Counter[Stranded]:
        # What an earmark keeps is idle, and free for nobody: the difference of the two sums is what is reserved.
        idle = [min(WHOLE_GPU, left + self._kept[node.name, at]) for at, left in enumerate(node.gpu_free)]
        free = [max(0, left) for left in node.gpu_free]
        every, rest = sum(part for part in idle if part > 0), sum(free)
        found: Counter[Stranded] = Counter({Stranded.OTHERS: len(node.gpu_others) * WHOLE_GPU})
        # One cause for all of a node's GPUs: whatever else keeps them idle, none can be used before the node is well.
        if not node.ready:
            found[self._kept_nodes.get(node.name, Stranded.FAULT)] = every
            return found
        found[Stranded.RESERVED] = every - rest
        if not (whole or parts) and (self._asked.whole or self._asked.parts):
            found[Stranded.NOBODY] = rest
            return found
        fitting = [need for need in parts if fits(need, node) is None]
        entire = free.count(WHOLE_GPU)
        if node.mig_instances:
            self._count_instances(node, rest, fitting, found)
            return found
        for left in free:
            if 0 < left < WHOLE_GPU:
                usable = any(need.mig_profile or need.gpu_milli <= left for need in fitting)
                found[Stranded.NONE if usable else Stranded.SHAPE] += left
        if fitting and not whole:
            found[Stranded.NONE] += entire * WHOLE_GPU
        elif not serves_whole_gpus(node):
            found[Stranded.SHAPE] += entire * WHOLE_GPU
        else:
            self._count_whole(node, entire, found)
        return found

    def _count_instances(self, node: Node, rest: int, asked: list[Need], found: "Counter[Stranded]") -> None:
        """Free instances that somebody asks for can be had; slices that are nobody's are of a shape nobody wants."""
        geometry = GEOMETRIES[node.mig_geometry]
        milli = {name: shape.size * geometry.milli_per_slice for name, shape in geometry.profiles.items()}
        # Of one profile the pod with the fewest instances can use the most of what is free.
        wanted = {need.mig_profile: need for need in sorted(asked, key=lambda need: -need.gpu_parts)}
        had = {
            profile: free_positions(need, node) // need.gpu_parts * need.gpu_parts for profile, need in wanted.items()
        }
        usable = sum(count * milli[profile] for profile, count in had.items())
        theirs = sum(min(count, held_by_others(name, node)) * milli[name] for name, count in node.mig_instances)
        found[Stranded.NONE] += usable
        found[Stranded.OTHERS] += min(theirs, rest - usable)
        found[Stranded.SHAPE] += rest - usable - min(theirs, rest - usable)

    def _count_whole(self, node: Node, entire: int, found: "Counter[Stranded]") -> None:
        """Counts whole GPUs as slots of one GPU each; those that cannot be used lack whatever there is least of."""
        one = self._slot(1).whole
        usable = min(entire, count_bundles(self._slot(1), node))
        found[Stranded.NONE] += usable * WHOLE_GPU
        if usable < entire:
            # Of equal shortages the first in this order is named, so that each GPU has exactly one cause and causes add
            # up.
            counts = [(max(0, node.pods_free), Stranded.PODS)]
            counts += [(max(0, node.cpu_free) // one.cpu_milli, Stranded.CPU)] if one.cpu_milli else []
            counts += [(max(0, node.memory_free) // one.memory_bytes, Stranded.MEMORY)] if one.memory_bytes else []
            least = min(fitting for fitting, _ in counts)
            cause = next(cause for fitting, cause in counts if fitting == least)
            found[cause] += (entire - usable) * WHOLE_GPU

    def _count(self, node: Node) -> None:
        gpus, model = 1, node.gpu_model
        self._models.add(model)
        while gpus <= node.gpus:
            fitting = count_bundles(self._slot(gpus), node)
            if fitting:
                here = self._free.setdefault(gpus, Counter())
                here.update({(POOL_LEVEL, ""): fitting, (NODE_LEVEL, node.name): fitting})
                # A gang is on one GPU model: what is free of another one beside it makes none larger.
                here.update({(MODEL_LEVEL, model): fitting})
                here.update(
                    {
                        (name, f"{at} {model}"): fitting
                        for name, label in self._asked.levels
                        if (at := node.label(label)) is not None
                    }
                )
            gpus *= 2

    def sum(self) -> Slots:
        """Slots by size (1, 2, 4, 8 … GPUs) and idle thousandths of GPUs by cause, over all nodes that were added."""
        sizes, gpus = [], 1
        while gpus <= self._most:
            sizes.append(self._size(gpus))
            gpus *= 2
        stranded = tuple((cause, self._stranded[cause]) for cause in Stranded)
        idle, classes = sum(milli for _, milli in stranded), tuple(self._classes)
        return Slots(self._pool, self._gpus, idle, stranded, tuple(sizes), device_classes=classes)

    def _size(self, gpus: int) -> Size:
        several = (MODEL_LEVEL,) if len(self._models) > 1 else ()
        largest = dict.fromkeys((NODE_LEVEL, *(name for name, _ in self._asked.levels), *several), 0)
        total = 0
        for (level, _), fitting in self._free.get(gpus, {}).items():
            if level == POOL_LEVEL:
                total = fitting
            elif level in largest:
                largest[level] = max(largest[level], fitting)
        return Size(gpus, total, tuple(largest.items()))


def tally_of(state: State, pool: str) -> Tally:
    """A tally for the nodes of a pool as they are now."""
    # It is said of these nodes that they are kept: nothing is wrong with them. One that is out cannot be kept.
    kept = dict.fromkeys(find_spares(state, pool), Stranded.RESERVED)
    booked = (node.name for node in state.nodes.found(shut_now(state, pool)) if is_well(state, node))
    return Tally(pool, asked(state, pool), state.earmarks.values(), kept | dict.fromkeys(booked, Stranded.BOOKED))


def _alike(needs: Iterable[Need]) -> list[list[Need]]:
    """Group together the needs that suit the same nodes."""
    found: dict[tuple[object, ...], list[Need]] = {}
    for need in needs:
        found.setdefault(never_key(need), []).append(need)
    return list(found.values())


def _suited(alike: Iterable[list[Need]], node: Node) -> list[Need]:
    return [need for needs in alike if never_fits(needs[0], node) is None for need in needs]
