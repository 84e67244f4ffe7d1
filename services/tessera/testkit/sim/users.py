"""Actions of people at the simulated cluster: Jobs, gangs and bare pods that name our scheduler, and tidying up."""

from collections import Counter
from contextlib import suppress
from random import Random

from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.workload import QUEUES, TENANTS
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.jobs import UID_LABEL
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    ENDED_PHASES,
    GANG_LABEL,
    GANG_SIZE_ANNOTATION,
    MANAGED_BY_LABEL,
    QUEUE_LABEL,
    SCHEDULER_NAME,
    SUSPEND_WAITING_ANNOTATION,
)
from tessera_schemas.reasons import Code

THINGS = (2, 6)
LOOK_SECONDS = 1.0
PATIENCE = 30
"""So many looks long a gang may lack a pod."""
TAKEN_AWAY = 0.05
"""How likely a pod of a waiting gang is taken away, at each look."""
GIVE_UP = 5
"""So many pods of a Job may fail before its user takes it away: each next attempt waits up to a minute."""
HOPELESS = frozenset({Code.ALREADY_ENDED, Code.INADMISSIBLE, Code.EXCEEDS_MAX_QUOTA, Code.NOT_CONFIGURED})


class Users:
    """Users of the cluster; names of their objects begin with `user-`. Faults are for services alone, not for them."""

    def __init__(self, cluster: SimCluster, clock: Clock, random: Random) -> None:
        self._cluster, self._clock, self._random = cluster, clock, random
        self._made = 0
        self._incomplete: Counter[str] = Counter()
        self._taken_away: list[tuple[int, str, Json]] = []

    async def work(self, seconds: float) -> None:
        """Make a few things, spread over so many seconds."""
        things = self._random.randrange(*THINGS)
        if self._random.random() < 0.75:  # a disruption budget that forbids the first evictions
            self._cluster.faults.answer("evict", 429, self._random.randrange(1, 6))
        for _ in range(things):
            await self._clock.sleep(self._random.uniform(0, seconds / things))
            with self._cluster.faults.paused():
                self._random.choice((self._make_job, self._make_job, self._make_gang, self._make_pod))()

    async def tidy(self) -> None:
        """Take away what has ended, and what was told that it never will be placed."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            with self._cluster.faults.paused():
                self._tidy()
                self._change_minds()

    # -- making

    def _make_job(self) -> None:
        pods, waves = self._random.choice((1, 1, 2, 3)), self._random.choice((1, 1, 1, 2))
        namespace, name, template = self._namespace(), self._name(), self._pod()
        spec = {
            "parallelism": pods,
            "completions": pods * waves,
            "backoffLimit": self._random.choice((1, 4, 8)),
            "suspend": waves == 1 and self._random.random() < 0.4,
            "template": template,
        }
        meta: Json = {"name": name}
        if self._made % 2:
            meta["annotations"] = {SUSPEND_WAITING_ANNOTATION: "true"}
        self._cluster.create("jobs", namespace, {"metadata": meta, "spec": spec})

    def _make_gang(self) -> None:
        size, namespace, name = self._random.randrange(2, 4), self._namespace(), self._name()
        pod = self._pod()
        for number in range(size):
            meta = pod["metadata"]
            labels, notes = meta["labels"] | {GANG_LABEL: name}, meta["annotations"] | {GANG_SIZE_ANNOTATION: str(size)}
            member = {"name": f"{name}-{number}", "labels": labels, "annotations": notes}
            self._cluster.create("pods", namespace, {"metadata": member, "spec": pod["spec"]})

    def _make_pod(self) -> None:
        pod = self._pod()
        pod["metadata"]["name"] = self._name()
        self._cluster.create("pods", self._namespace(), pod)

    def _namespace(self) -> str:
        return self._random.choice(TENANTS)

    def _name(self) -> str:
        self._made += 1
        return f"user-{self._made}"

    def _pod(self) -> Json:
        random = self._random
        gpus, seconds = random.choice((0, 1, 1, 2)), random.uniform(0.1, 6)
        amounts = {"cpu": "500m", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        notes = {
            "tessera.io/simulate-seconds": f"{seconds:.2f}",
            "tessera.io/simulate-rank-seconds": random.choice(("0", "2")),
            "tessera.io/simulate-exit-code": "1" if random.random() < 0.1 else "0",
            "tessera.io/simulate-term-ms": str(random.randrange(10, 2000)),
        }
        container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
        spec: Json = {"schedulerName": SCHEDULER_NAME, "restartPolicy": "Never", "containers": [container]}
        spec |= {"priority": random.choice((0, 0, 1000)), "terminationGracePeriodSeconds": 2}
        return {"metadata": {"labels": {QUEUE_LABEL: random.choice(QUEUES)}, "annotations": notes}, "spec": spec}

    # -- tidying up

    def _tidy(self) -> None:
        for job in self._cluster.list("jobs")[0]:
            status = job.object.get("status", {})
            told = {one[said] for one in status.get("conditions", ()) for said in ("type", "reason") if said in one}
            ended = bool({"Complete", "Failed", Code.ALREADY_ENDED} & told)  # the last of a Job that stays suspended
            if ended or status.get("failed", 0) >= GIVE_UP:
                self._cluster.delete("jobs", job.meta["namespace"], job.meta["name"])
        for pod in self._cluster.list("pods", f"{MANAGED_BY_LABEL}!={SCHEDULER_NAME}")[0]:
            if not pod.meta["name"].startswith("user-") or pod.deleting:
                continue
            owned = UID_LABEL in pod.labels
            ended = pod.phase in ENDED_PHASES and not owned
            if ended or self._is_hopeless(pod.object, owned):
                self._drop(pod.object, owned)

    def _change_minds(self) -> None:
        """Take a pod out of a gang that waits, and put it back some looks later."""
        for pod in self._cluster.list("pods", GANG_LABEL)[0]:
            waits = pod.meta["name"].startswith("user-") and not pod.object["spec"].get("nodeName") and not pod.deleting
            if waits and self._random.random() < TAKEN_AWAY:
                kept = {part: pod.meta[part] for part in ("name", "labels", "annotations")}
                again = {"metadata": kept, "spec": pod.object["spec"]}
                self._taken_away.append((self._random.randrange(1, 6), pod.meta["namespace"], again))
                self._cluster.delete("pods", pod.meta["namespace"], pod.meta["name"])
        due = [(namespace, again) for looks, namespace, again in self._taken_away if not looks]
        self._taken_away = [(looks - 1, where, again) for looks, where, again in self._taken_away if looks]
        for namespace, made_again in due:
            self._cluster.create("pods", namespace, made_again)

    def _is_hopeless(self, pod: Json, owned: bool) -> bool:
        """Whether a hand-made gang lacks pods that nobody will make again."""
        told = [
            c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled" and c["status"] == "False"
        ]
        reasons = {condition.get("reason") for condition in told}
        if Code.GANG_INCOMPLETE in reasons and not owned:
            self._incomplete[pod["metadata"]["uid"]] += 1
        return bool(HOPELESS & reasons) or self._incomplete[pod["metadata"]["uid"]] > PATIENCE

    def _drop(self, pod: Json, owned: bool) -> None:
        """Deletes the pod together with the Job that would make it again."""
        meta = pod["metadata"]
        with suppress(ApiError):
            if owned:
                self._cluster.delete("jobs", meta["namespace"], meta["ownerReferences"][0]["name"])
            else:
                self._cluster.delete("pods", meta["namespace"], meta["name"])
