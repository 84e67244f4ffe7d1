"""
Use of nodes by runs' bound pods beyond what their runs hold: in come pods, out comes a sum.

A pod may be resized in place, its RuntimeClass has overhead, a webhook adds a container: the ledger holds for it
what its job asked for, so the rest counts as taken by others. Only CPU and memory can differ; devices never do.
"""

from collections.abc import Iterable

from tessera.binder.uses import USES, Uses, uses_of
from tessera.domain.entities import Run
from tessera.domain.resources import Need
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import Others
from tessera_schemas.labels import DIGITS_MAX, has_ended, run_and_rank


class SurplusByNode:
    """
    Pods that take more than their runs hold for them, by node; `take` is given what the informers of runs' pods show.

    A pod whose run the state does not know yet is kept too, and compared when the node is asked about.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._there: dict[str, dict[str, tuple[str, str, Uses]]] = {}
        self._node_of: dict[str, str] = {}

    def on(self, node: str) -> tuple[int, int]:
        """CPU in thousandths and bytes of memory, beyond what runs hold."""
        cpu = memory = 0
        for uid, (run_id, rank, uses) in self._there.get(node, {}).items():
            more = self._beyond(uid, run_id, rank, uses)
            cpu, memory = cpu + more[0], memory + more[1]
        return cpu, memory

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
        run_id, rank = ("", "") if delta.type == "DELETED" or has_ended(pod) or not node else run_and_rank(pod)
        if run_id:
            uses: Uses = pod[USES] if USES in pod else uses_of(pod)
            if self._state.runs.get(run_id) is None or self._beyond(uid, run_id, rank, uses) != (0, 0):
                return self._note(uid, node, (run_id, rank, uses))
        if before is None:
            return []
        self._forget(uid, before)
        return [before]

    def _note(self, uid: str, node: str, what: tuple[str, str, Uses]) -> list[str]:
        there = self._there.setdefault(node, {})
        if there.get(uid) == what:
            return []
        there[uid], self._node_of[uid] = what, node
        return [node]

    def _forget(self, uid: str, node: str) -> None:
        del self._node_of[uid]
        there = self._there[node]
        del there[uid]
        if not there:
            del self._there[node]

    def _beyond(self, uid: str, run_id: str, rank: str, uses: Uses) -> tuple[int, int]:
        run = self._state.runs.get(run_id)
        need = None if run is None else _need_of(run, uid, rank)
        if need is None:
            return 0, 0
        return max(0, uses.cpu_milli - need.cpu_milli), max(0, uses.memory_bytes - need.memory_bytes)


def with_surplus(others: Others, cpu_milli: int, memory_bytes: int) -> Others:
    """Use by others, and by runs' pods beyond their runs; these pods themselves are counted by their runs."""
    if not (cpu_milli or memory_bytes):
        return others
    return others.model_copy(
        update={
            "cpu_milli": min(others.cpu_milli + cpu_milli, INT_MAX),
            "memory_bytes": min(others.memory_bytes + memory_bytes, INT_MAX),
        }
    )


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
