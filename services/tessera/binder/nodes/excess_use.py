"""
Use of nodes by runs' bound pods beyond what their runs hold: in come pods, out comes a sum.

A pod may be resized in place, its RuntimeClass has overhead, a webhook adds a container: the ledger holds for it
what its job asked for, so the rest counts as taken by others. Of such a pod only CPU and memory can differ; devices
never do. A pod for which the ledger holds nothing, since it is another ledger's, or of a run that this one lost, counts
wholly, devices included, until it is gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tessera.binder.decide.steps import count_of
from tessera.binder.nodes.uses import USES, Uses, uses_of
from tessera.domain.devices.resources import Need
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta
from tessera.kernel.ports import Clock
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    ALLOCATED_N_ANNOTATION,
    DIGITS_MAX,
    MANAGED_BY_LABEL,
    SCHEDULER_NAME,
    bound_for,
    has_ended,
    is_of_another,
    ledger_of,
    run_and_rank,
)

DOUBT_SECONDS = 5.0
WITHIN: tuple[Uses, bool] = (Uses(), False)
"""A pod takes what its run holds for it."""


@dataclass(frozen=True, slots=True)
class _BoundPod:
    """Fields of a bound pod that are compared; `seen` when it was seen first, in monotonic seconds."""

    run_id: str
    rank: str
    uses: Uses
    ledger: str
    allocated_n: int
    seen: float


class SurplusByNode:
    """
    Pods that take more than their runs hold for them, by node; `take` is given what the informers of runs' pods show.

    Each is compared when its node is asked about: whether the ledger holds something for it may have changed. One that
    was made by a message beyond what was folded is not counted for `DOUBT_SECONDS`: mostly we are only behind.
    """

    def __init__(self, state: State, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._there: dict[str, dict[str, _BoundPod]] = {}
        self._node_of: dict[str, str] = {}

    def on(self, node: str) -> list[tuple[Uses, bool]]:
        """What each pod takes beyond what runs hold, without those of nothing, and whether that is all of the pod."""
        found = (self._beyond(uid, pod) for uid, pod in self._there.get(node, {}).items())
        return [each for each in found if each != WITHIN]

    def in_doubt(self, node: str) -> bool:
        """Whether a pod there is not counted yet, and may have to be."""
        return any(self._is_doubtful(uid, pod) for uid, pod in self._there.get(node, {}).items())

    def take(self, deltas: Iterable[Delta]) -> list[str]:
        """The nodes of which the sum may have changed, each once."""
        changed: dict[str, None] = {}
        for delta in deltas:
            changed |= dict.fromkeys(self._hold(delta))
        return list(changed)

    def _hold(self, delta: Delta) -> list[str]:
        pod = delta.object
        uid, node = pod["metadata"]["uid"], str((pod.get("spec") or {}).get("nodeName") or "")
        before = self._node_of.get(uid)
        counts = delta.type != "DELETED" and not has_ended(pod) and node and _is_of_a_run(pod)
        run_id, rank = run_and_rank(pod) if counts else ("", "")
        if run_id:
            uses: Uses = pod[USES] if USES in pod else uses_of(pod)
            n = count_of((pod["metadata"].get("annotations") or {}).get(ALLOCATED_N_ANNOTATION, ""))
            bound = _BoundPod(run_id, rank, uses, ledger_of(pod), n, self._clock.monotonic())
            if self._need_of(uid, bound) is None or self._beyond(uid, bound) != WITHIN:
                return self._note(uid, node, bound)
        if before is None:
            return []
        self._forget(uid, before)
        return [before]

    def _note(self, uid: str, node: str, pod: _BoundPod) -> list[str]:
        there = self._there.setdefault(node, {})
        before = there.get(uid)
        if before is not None:
            pod = replace(pod, seen=before.seen)
        there[uid], self._node_of[uid] = pod, node
        return [] if before == pod else [node]

    def _forget(self, uid: str, node: str) -> None:
        del self._node_of[uid]
        there = self._there[node]
        del there[uid]
        if not there:
            del self._there[node]

    def _beyond(self, uid: str, pod: _BoundPod) -> tuple[Uses, bool]:
        need, uses = self._need_of(uid, pod), pod.uses
        if need is None:
            return WITHIN if self._is_doubtful(uid, pod) else (uses, True)
        cpu, memory = max(0, uses.cpu_milli - need.cpu_milli), max(0, uses.memory_bytes - need.memory_bytes)
        return Uses(cpu_milli=cpu, memory_bytes=memory), False

    def _is_doubtful(self, uid: str, pod: _BoundPod) -> bool:
        if is_of_another(pod.ledger, self._state.ledger_id) or self._need_of(uid, pod) is not None:
            return False
        return pod.allocated_n > self._state.n and self._clock.monotonic() - pod.seen < DOUBT_SECONDS

    def _need_of(self, uid: str, pod: _BoundPod) -> Need | None:
        run = self._state.runs.get(pod.run_id)
        if run is None or is_of_another(pod.ledger, self._state.ledger_id):
            return None
        return _need_of(run, uid, pod.rank)


def _is_of_a_run(pod: Json) -> bool:
    """Whether a binder made or bound it: any other that names us is counted by whoever watches users' pods."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == SCHEDULER_NAME or bool(bound_for(pod))


def _need_of(run: Run, uid: str, rank_text: str) -> Need | None:
    """
    The need that the run holds for this pod; None if the pod is not one of its own. The rank is the pod's own claim.
    """
    rank = int(rank_text) if rank_text.isdecimal() and len(rank_text) <= DIGITS_MAX else -1
    if not (0 <= rank < len(run.uids) and run.uids[rank] == uid) and uid not in run.permitted:
        return None
    if 0 <= rank < len(run.placements) and run.placements[rank].rank == rank:
        role = run.placements[rank].role
    else:
        role = next((placement.role for placement in run.places if placement.rank == rank), "")
    return next((each.need for each in run.roles if each.name == role), None)
