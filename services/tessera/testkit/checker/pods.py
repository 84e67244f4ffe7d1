"""Pods as the cluster had them, against what the ledger allowed. It reads the API's own objects."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.testkit.checker.story import CheckedRun, Story
from tessera_schemas.cluster.labels import FINALIZER, SCHEDULER_NAME, run_and_rank


@dataclass(frozen=True, slots=True)
class PodChange:
    """A watch event of a pod. `n`: the ledger's last n when it happened; None: not known, then order is not judged."""

    type: str
    object: Mapping[str, Any]
    n: int | None = None


class Pods:
    """Takes changes in order, between the ledger messages when their `n` is known."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.bound, self.finalized = set[str](), set[str]()
        self.live, self.held = dict[str, tuple[CheckedRun | None, int]](), Counter[tuple[str, int]]()

    def take(self, change: PodChange) -> None:
        """Holds one change of a pod against the ledger's runs, and follows what live pods hold."""
        self.story.report.examined["pod changes"] += 1
        meta, spec, gone = change.object["metadata"], change.object.get("spec", {}), change.type == "DELETED"
        uid, node, (run_id, said) = str(meta["uid"]), spec.get("nodeName", ""), run_and_rank(change.object)
        rank = int(said or 0)
        if not run_id and spec.get("schedulerName") != SCHEDULER_NAME:
            return
        run = run if (run := self.story.runs.get(run_id)) and 0 <= rank < len(run.placements) else None
        held = not gone and FINALIZER in (meta.get("finalizers") or ())
        (self.finalized.add if held else self.finalized.discard)(uid)
        if node and uid not in self.bound:
            self._bind(uid, run, rank, node, change.n is not None)
        living = bool(node) and not gone and change.object.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        if living and uid not in self.live:
            self._begin(uid, run, rank)
        elif not living and uid in self.live:
            self._hold(*self.live.pop(uid), -1)

    def _bind(self, uid: str, run: CheckedRun | None, rank: int, node: str, ordered: bool) -> None:
        self.story.report.examined["binds"] += 1
        self.bound.add(uid)
        pod = f"pod {uid} of run {run and run.run_id} rank {rank}"
        if run is None or (uid != run.uids.get(rank) and (rank, uid) not in run.former):
            self.story.demand(False, "I3", f"{pod} has no permit")
            return
        given = run.placements[rank].node
        self.story.demand(node == given, "I1", f"{pod} is bound to {node}, the ledger gave it {given}")
        late = ordered and (run.released or rank in run.free)
        self.story.demand(not late, "I10", f"{pod} is bound after the run's release")

    def _begin(self, uid: str, run: CheckedRun | None, rank: int) -> None:
        self.live[uid] = run, rank
        self._hold(run, rank, 1)
        if run is not None:
            runs = {other.run_id for other, _ in self.live.values() if other and other.job.job_id == run.job.job_id}
            self.story.demand(len(runs) == 1, "I2", f"live pods of {sorted(runs)} at once")

    def _hold(self, run: CheckedRun | None, rank: int, sign: int) -> None:
        for place in run.placements[rank : rank + 1] if run else ():
            for device in place.devices:
                self.held[place.node, device] += sign * place.gpu_milli
                within = sign < 0 or self.held[place.node, device] <= 1000
                self.story.demand(within, "I1", f"live pods hold more than device {device} of {place.node}")

    def released(self) -> None:
        """No live pod may be of a released run; said once of each."""
        for uid in [uid for uid, (run, rank) in self.live.items() if run and (run.released or rank in run.free)]:
            self.story.demand(False, "I10", f"pod {uid} is live although its run is released")
            self._hold(*self.live.pop(uid), -1)

    def end(self, drained: bool) -> None:
        """Checks what is left at the end; with `drained` no live pod and no finalizer may be."""
        self.released()
        left = {*self.live, *self.finalized} if drained else set()
        self.story.demand(not left, "I12", f"pods are left that are live or have the finalizer: {sorted(left)}")
