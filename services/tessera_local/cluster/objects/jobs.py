"""
A small controller of batch/v1 Jobs for the simulated cluster: it makes their pods, makes evicted ones again, counts.

Of the real one's rules it knows parallelism, completions, backoffLimit, suspend and Indexed completions. It does not
wait between attempts, and knows no podFailurePolicy, no deadline and no time to live.
"""

from collections.abc import Sequence

from tessera.kernel.ports import Clock
from tessera_local.cluster.api.values import rfc3339
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ENDED_PHASES

LOOK_SECONDS = 0.2
UID_LABEL = "batch.kubernetes.io/controller-uid"
NAME_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_BACKOFF_LIMIT = 6


class JobController:
    """Level-triggered: each Job is looked at every `LOOK_SECONDS`, from the pods there are and what was counted."""

    def __init__(self, cluster: SimCluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._made = 0  # of pods; an earlier process may have made some
        self._ended: dict[str, dict[str, str]] = {}
        self._active: dict[str, dict[str, str]] = {}

    async def run(self) -> None:
        """Look at all Jobs every 0.2 s until cancelled; the controller's own calls meet no ordered faults."""
        while True:
            with self._cluster.faults.paused():
                self.look()
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Once at every Job; the pods of one that is gone go, too, as the garbage collector sees to."""
        jobs, _ = self._cluster.list("jobs")
        if not jobs and not self._ended:
            return
        pods_of: dict[str, list[Version]] = {job.uid: [] for job in jobs}
        for pod in self._cluster.list("pods")[0]:
            owner = pod.labels.get(UID_LABEL)
            if owner in pods_of:
                pods_of[owner].append(pod)
            elif owner is not None and not pod.deleting:
                self._cluster.delete("pods", pod.meta["namespace"], pod.meta["name"])
        self._ended = {uid: self._ended.get(uid, {}) for uid in pods_of}
        for job in jobs:
            self._look_at(job, pods_of[job.uid])

    def _look_at(self, job: Version, pods: Sequence[Version]) -> None:
        if any(c["type"] in ("Complete", "Failed") for c in job.object.get("status", {}).get("conditions", ())):
            return
        spec = job.object["spec"]
        if "selector" not in spec:
            selector = {"spec": {"selector": {"matchLabels": {UID_LABEL: job.uid}}}}
            job = self._cluster.patch("jobs", job.meta["namespace"], job.meta["name"], selector)
        self._made = max([self._made, *map(_number_of, pods)])
        ended = self._count(job, pods)
        active = [pod for pod in pods if pod.uid not in ended and not pod.deleting]
        if spec.get("suspend"):
            for pod in active:
                self._cluster.delete("pods", pod.meta["namespace"], pod.meta["name"])
            active = []
        self._active[job.uid] = {pod.uid: pod.labels.get(INDEX_LABEL, "") for pod in active}
        self._settle(job, active, list(ended.values()))

    def _count(self, job: Version, pods: Sequence[Version]) -> dict[str, str]:
        """Ends of a Job's pods by UID; a pod that was deleted before its end has failed, and stays counted."""
        ended, active = self._ended[job.uid], self._active.pop(job.uid, {})
        # The real controller's finalizer keeps each pod until it is counted; here one may be gone between two looks.
        for uid in active.keys() - {pod.uid for pod in pods}:
            ended.setdefault(uid, f"Failed/{active[uid]}")
        for pod in pods:
            if pod.phase in ENDED_PHASES:
                ended.setdefault(pod.uid, f"{pod.phase}/{pod.labels.get(INDEX_LABEL, '')}")
            elif pod.deleting and not job.object["spec"].get("suspend"):
                ended.setdefault(pod.uid, f"Failed/{pod.labels.get(INDEX_LABEL, '')}")
        return ended

    def _settle(self, job: Version, active: Sequence[Version], ended: Sequence[str]) -> None:
        spec = job.object["spec"]
        parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
        done = [one for one in ended if one.startswith("Succeeded")]
        failed = len(ended) - len(done)
        complete = len(done) >= completions if completions is not None else bool(done) and not active
        status: Json = {"active": len(active), "succeeded": len(done), "failed": failed}
        if complete:
            self._set_condition(job, status, "Complete", "CompletionsReached")
        elif failed > spec.get("backoffLimit", _BACKOFF_LIMIT):
            for pod in active:
                self._cluster.delete("pods", pod.meta["namespace"], pod.meta["name"])
            self._set_condition(job, status, "Failed", "BackoffLimitExceeded")
        else:
            wanted = parallelism if completions is None else min(parallelism, completions - len(done))
            if not spec.get("suspend") and not (completions is None and done):
                self._make(job, active, done, wanted - len(active))
            self._write(job, status)

    def _make(self, job: Version, active: Sequence[Version], done: Sequence[str], number: int) -> None:
        taken = {pod.labels.get(INDEX_LABEL) for pod in active} | {one.partition("/")[2] for one in done}
        free = [index for index in range(job.object["spec"].get("completions") or 0) if str(index) not in taken]
        indexed = job.object["spec"].get("completionMode") == "Indexed"
        for place in range(max(0, number)):
            self._made += 1
            index = str(free[place]) if indexed else ""
            name = f"{job.meta['name']}-{index or 'p'}-{self._made:05d}"
            self._cluster.create("pods", job.meta["namespace"], self._pod(job, name, index))

    def _pod(self, job: Version, name: str, index: str) -> Json:
        template = job.object["spec"]["template"]
        meta = template.get("metadata") or {}
        labels = {UID_LABEL: job.uid, NAME_LABEL: job.meta["name"]} | ({INDEX_LABEL: index} if index else {})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.meta["name"], "uid": job.uid, "controller": True}
        return {
            "metadata": {
                "name": name,
                "labels": {**(meta.get("labels") or {}), **labels},
                "annotations": dict(meta.get("annotations") or {}),
                "ownerReferences": [owner],
            },
            "spec": {**template["spec"], "priority": self._priority(template["spec"])},
        }

    def _priority(self, pod_spec: Json) -> int:
        """Priority of a pod, as admission of the API server fills it in."""
        classes, _ = self._cluster.list("priorityclasses")
        name = pod_spec.get("priorityClassName")
        chosen = (one for one in classes if (one.meta["name"] == name if name else one.object.get("globalDefault")))
        return next((int(one.object["value"]) for one in chosen), 0)

    def _set_condition(self, job: Version, status: Json, condition: str, reason: str) -> None:
        now = rfc3339(self._clock.now_ms())
        entry = {"type": condition, "status": "True", "reason": reason, "lastTransitionTime": now}
        self._write(job, {**status, "conditions": [entry]})

    def _write(self, job: Version, status: Json) -> None:
        if job.object.get("status") != status:
            self._cluster.patch("jobs", job.meta["namespace"], job.meta["name"], {"status": status}, "status")


def _number_of(pod: Version) -> int:
    """The number at the end of a pod's name; 0 for one that was named by hand."""
    number = str(pod.meta["name"]).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
