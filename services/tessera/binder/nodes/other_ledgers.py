"""
Pods that a binder of another ledger made: told, counted as used by others, and never touched.

A second installation of the same shard name sees the first one's pods as its own runs'. Each pod names the ledger that
made it; of pods of versions that did not say it, those of jobs that this ledger knows are its own.
"""

from collections.abc import Iterable

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Delta
from tessera.kernel.ports import Clock, Ledger
from tessera.kernel.service.metrics import Metrics
from tessera_schemas.cluster.labels import has_ended, is_of_another, ledger_of

SHOWN = 3

log = structlog.get_logger()


def knows_job(state: State, run_id: str) -> bool:
    """Whether the ledger knows the job that a run's id names, live or remembered."""
    job_id = run_id.rpartition("-")[0]
    return state.jobs.get(job_id) is not None or state.ended.get(job_id) is not None


class OtherLedgers:
    """The pods of our shard that another ledger made, as the informer of runs' pods shows them."""

    def __init__(self, state: State, metrics: Metrics) -> None:
        self._state, self._metrics = state, metrics
        self._there: dict[str, tuple[str, str, str]] = {}  # UID: ledger, pod, node

    def take(self, deltas: Iterable[Delta]) -> None:
        """Takes in changes of the shard's pods."""
        for delta in deltas:
            pod = delta.object
            uid, named = pod["metadata"]["uid"], ledger_of(pod)
            if delta.type == "DELETED" or has_ended(pod) or not is_of_another(named, self._state.ledger_id):
                self._there.pop(uid, None)
                continue
            meta, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName") or ""
            if uid not in self._there:
                log.error("pod_of_another_ledger", pod=meta["name"], namespace=meta["namespace"], ledger=named)
            self._there[uid] = named, f"{meta['namespace']}/{meta['name']}", node
        self._metrics.pods_of_others.set(len(self._bound()))

    def _bound(self) -> list[tuple[str, str, str]]:
        """Judged anew: which ledger is ours is known only once its identity was folded."""
        return [each for each in self._there.values() if each[2] and is_of_another(each[0], self._state.ledger_id)]

    def problem(self) -> str | None:
        """Why this binder is not ready; None without bound pods of another ledger."""
        bound = sorted(self._bound(), key=lambda each: each[1])
        if not bound:
            return None
        shown = ", ".join(f"{pod} on {node}" for _, pod, node in bound[:SHOWN])
        return (
            f"pods of another installation run on this shard's nodes: {len(bound)}, such as {shown}. They are left "
            "alone; give one of the two installations another shard name (TESSERA_SHARD), or delete them"
        )


DOUBT_SECONDS = 10.0
"""A replica of the stream that lags may answer with an older end for a moment."""


class LedgerReach:
    """Remembers since when each number is beyond the end; those that the ledger reaches are forgotten."""

    def __init__(self, ledger: Ledger, clock: Clock, state: State) -> None:
        self._ledger, self._clock, self._state = ledger, clock, state
        self._beyond: dict[int, float] = {}

    async def check(self, n: int, what: str) -> None:
        """
        Returns when message `n` was folded, or is certainly none of this ledger; costs one read unless it was folded.

        Raises Transient while the message is still to be read, or might be.
        """
        if self._beyond:
            self._beyond = {each: since for each, since in self._beyond.items() if each > self._state.n}
        if n <= self._state.n:
            return
        tail = await self._ledger.tail()
        if tail is not None and tail.seq >= n:
            self._beyond.pop(n, None)
            raise Transient(f"the {what} is newer than what was read of the ledger")
        now = self._clock.monotonic()
        if now - self._beyond.setdefault(n, now) < DOUBT_SECONDS:
            raise Transient(f"the {what} was made by message {n}, which the ledger does not have yet, or lost")
