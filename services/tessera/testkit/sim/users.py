"""
Actions of people: Jobs, gangs and bare pods at the simulated cluster that name our scheduler, and tidying up; and
submits of jobs that are near to data or pods, that are to end by a time or run in a reservation, of notebooks, and of
programs that hang.
"""

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any, Literal

import orjson

from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.loop import EPOCH_MS
from tessera.testkit.sim.workload import (
    DATASET_BYTES,
    HOST,
    NODES,
    QUEUES,
    TENANTS,
    Command,
    cancel,
    job_spec,
    release,
    submit_job,
)
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.jobs import UID_LABEL
from tessera_schemas.base import Json, job_id
from tessera_schemas.cluster.labels import (
    ENDED_PHASES,
    GANG_LABEL,
    GANG_SIZE_ANNOTATION,
    MANAGED_BY_LABEL,
    MIN_REPLICAS_ANNOTATION,
    QUEUE_LABEL,
    SCHEDULER_NAME,
    SESSION_LABEL,
    SIMULATE_PREFIX,
    SUSPEND_WAITING_ANNOTATION,
)
from tessera_schemas.cluster.node_terms import DatasetHint, Neighbours, PodTerm
from tessera_schemas.commands import EndReservation, HoldJob, RequeueJob, ReserveNodes, TellDataset
from tessera_schemas.job import JobProgress, JobSpec, RetryLadder, Template
from tessera_schemas.reasons import Code
from tessera_schemas.subjects import control, submit
from tessera_schemas.work.measured_use import Session

PEOPLE = ("ann", "bob")
DATASETS = ("corpus", "maps", "photos")
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
        meta: Json = pod["metadata"]
        meta["name"], namespace = self._name(), self._namespace()
        if self._made % 2:  # a replica of a service of the namespace, of which one is guaranteed
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "user-chat", "controller": True}
            meta["ownerReferences"] = [owner | {"uid": f"user-chat-{namespace}"}]
            meta["annotations"][MIN_REPLICAS_ANNOTATION] = "1"
        elif self._made % 3 == 0:  # a notebook, as a hub marks it
            meta["labels"][SESSION_LABEL] = "notebook"
            meta["annotations"]["hub.jupyter.org/username"] = PEOPLE[self._made % 4 // 2]
        self._cluster.create("pods", namespace, pod)

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


def submit_neighbours(shard: str, random: Random, seconds: float) -> list[Command]:
    """In every other world jobs that stay away from pods of others, or go near to them, until they are cancelled."""
    if random.random() < 0.5:
        return []
    made, tenant = list[Command](), random.choice(TENANTS)
    for index in range(random.randrange(4, 9)):
        at, key = random.uniform(0.5, seconds), f"neighbour-{index}"
        own, other = random.sample(("db", "web", "log"), 2)
        spec = job_spec(random, gang=random.random() < 0.3)
        term = PodTerm(labels={"app": other}, weight=random.choice((None, None, 10)))
        said: dict[str, Any] = {random.choice(("apart_from", "apart_from", "near")): (term,)}
        near = Neighbours(labels={"app": own}, **said)
        roles = tuple(role.model_copy(update={"neighbours": near, "max_replicas": None}) for role in spec.roles)
        spec = spec.model_copy(update={"roles": roles, "name": key})
        made += [submit_job(shard, at, tenant, key, spec), cancel(shard, tenant, key, seconds + random.uniform(1, 4))]
    return made


def submit_readers(shard: str, random: Random, seconds: float) -> list[Command]:
    """In every other world jobs that read data sets, and words of their tenant about where these are."""
    made, tenant, reads = list[Command](), random.choice(TENANTS), random.random() < 0.5
    for index in range(random.randrange(4, 9) * reads):
        names = random.sample(DATASETS, k=random.choice((1, 1, 2)))
        data = tuple(DatasetHint(name=name, size_bytes=DATASET_BYTES) for name in sorted(names))
        spec = job_spec(random, gang=random.random() < 0.2).model_copy(update={"datasets": data})
        made.append(submit_job(shard, random.uniform(0.5, seconds), tenant, f"reader-{index}", spec))
    for _ in range(random.randrange(2, 6) * reads):
        nodes = random.sample(NODES, k=2)
        said: dict[str, Any] = {"size_bytes": DATASET_BYTES, "nodes": nodes[:1], "gone": nodes[1:]}
        told = TellDataset.model_validate({"kind": "tell_dataset", "v": 1, "dataset": random.choice(DATASETS), **said})
        made.append(Command(random.uniform(1, seconds), submit(shard, tenant), told.to_bytes(), tenant))
    return made


def submit_sessions(shard: str, random: Random, seconds: float) -> list[Command]:
    """
    In every other world notebooks of two people, more than they may have at once: used now and then, paused by their
    users or by their own idleness, resumed, and cancelled in the end.
    """
    made, tenant, works = list[Command](), random.choice(TENANTS), random.random() < 0.5
    for index in range(random.randrange(3, 8) * works):
        at, key = random.uniform(0.5, seconds), f"session-{index}"
        job, own = job_id(shard, tenant, key), submit(shard, tenant)
        made.append(submit_job(shard, at, tenant, key, _notebook(random, key)))
        if random.random() < 0.4:
            paused = HoldJob(kind="hold_job", v=1, job_id=job), RequeueJob(kind="requeue_job", v=1, job_id=job)
            pause_at = at + random.uniform(1, 5)
            made += [Command(pause_at + 0.1 * step, own, each.to_bytes()) for step, each in enumerate(paused)]
        resumed = random.randrange(3)
        made += [Command(at + random.uniform(2, 12), own, release(shard, job).data) for _ in range(resumed)]
        made.append(cancel(shard, tenant, key, seconds + random.uniform(8, 20)))
    return made


def submit_hanging(shard: str, random: Random, seconds: float) -> list[Command]:
    """
    Jobs whose pods report steps, and hang in their first run; one that is only warned of is cancelled in the end.
    """
    made, tenant = list[Command](), random.choice(TENANTS)
    for index in range(random.randrange(1, 4)):
        at, key, pods = random.uniform(0.5, seconds / 2), f"hanging-{index}", random.choice((1, 3))
        then = random.choice(("warn", "restart", "elsewhere"))
        notes = {"seconds": "3", "step-seconds": "0.4", "hang-step": str(random.randrange(1, 9)), "term-ms": "300"}
        spec = job_spec(random)
        (role,) = spec.roles
        template = Template(image="train:1", annotations={SIMULATE_PREFIX + name: notes[name] for name in notes})
        shape = {"replicas": pods, "max_replicas": None, "exclusive": False, "template": template}
        rule = JobProgress.model_validate({"hang_seconds": 5, "then": then})
        ladder = RetryLadder(in_place=random.randrange(2), domain_after=random.randrange(3), level=HOST.label)
        update = {"roles": (role.model_copy(update=shape),), "progress": rule, "name": key, "groups": ()}
        retry = spec.retry.model_copy(update={"ladder": ladder})
        plain = {"launcher": None, "time_limit_seconds": None, "retry": retry}
        made.append(submit_job(shard, at, tenant, key, spec.model_copy(update=update | plain)))
        made.append(cancel(shard, tenant, key, seconds + random.uniform(20, 25)))
    return made


def submit_due(shard: str, random: Random, seconds: float) -> list[Command]:
    """Jobs that are to end by a time: one of them hardly can, one has time enough."""
    made, tenant = list[Command](), random.choice(TENANTS)
    for index, most in enumerate((3.5, 3600.0)):
        at, spec = random.uniform(0.5, seconds), job_spec(random)
        late = EPOCH_MS + int((at + random.uniform(2.5, most)) * 1000)
        plain = {"time_limit_seconds": 2, "deadline_ts": late, "name": f"due-{index}"}
        made.append(submit_job(shard, at, tenant, f"due-{index}", spec.model_copy(update=plain)))
    return made


def reserve_nodes(shard: str, random: Random, seconds: float) -> list[Command]:
    """
    In two of three worlds reservations, of which some are refused, and jobs that name one; operators end them, in the
    middle of a window or before it, and one of a minute ends by itself where the world lasts as long.
    """
    made, tenant = list[Command](), random.choice(TENANTS)
    for index in range(random.randrange(3)):
        at, name = random.uniform(0.5, seconds / 2), f"booking-{index}"
        begin = EPOCH_MS + int((at + random.uniform(0, 12)) * 1000)
        windows = [{"start_ts": begin, "end_ts": begin + random.choice((60_000, 90_000))}]
        what = random.choice(({"nodes": [random.choice(NODES)]}, {"node_count": 1}, {"gpus": 2, "first": True}))
        said = {"kind": "reserve_nodes", "v": 1, "name": name, "pool": "default", "windows": windows, "who": [tenant]}
        order = ReserveNodes.model_validate_json(orjson.dumps({**said, **what, "why": "maintenance"}))
        ended = EndReservation(kind="end_reservation", v=1, name=name)
        made += [Command(at, control(shard), order.to_bytes())]
        made += [Command(seconds * random.uniform(0.7, 1.3), control(shard), ended.to_bytes())]
        for job in range(random.randrange(3)):
            plain = {"reservation": name, "time_limit_seconds": random.choice((None, 2)), "name": f"{name}-{job}"}
            spec = job_spec(random).model_copy(update=plain)
            made.append(submit_job(shard, at + random.uniform(1, 4), tenant, f"{name}-{job}", spec))
    return made


def promise_starts(shard: str, random: Random, seconds: float) -> list[Command]:
    """Jobs whose start is to be promised: of some the time is too near, of some all nodes are another's by then."""
    made, tenant = list[Command](), random.choice(TENANTS)
    for index in range(random.randrange(3)):
        at, spec = random.uniform(2, seconds), job_spec(random)
        promised = EPOCH_MS + int((at + random.uniform(30, 120)) * 1000)
        plain = {"time_limit_seconds": random.choice((2, 60)), "start_by_ts": promised, "name": f"promised-{index}"}
        made.append(submit_job(shard, at, tenant, f"promised-{index}", spec.model_copy(update=plain)))
    return made


def _notebook(random: Random, name: str) -> JobSpec:
    """One pod that warns of its idleness, is used again after some warnings, and stops by itself after the last."""
    idle, warning = random.choice(((3, 1), (4, 2)))
    on_idle: Literal["pause", "end"] = random.choice(("pause", "end"))
    used, turns = random.uniform(0.2, 2.0), list[float]()
    for _ in range(random.choice((0, 0, 1, 2))):
        turns += [used + idle - warning, used := used + idle - warning / 2]
    turns.append(used + idle - warning)
    word = f'tessera-steps/1 {{"ask": "{on_idle}", "who": "idle for {idle} s"}}'
    notes = {
        "seconds": f"{used + idle:.2f}",
        "ready-turns": " ".join(f"{turn:.2f}" for turn in turns),
        "exit-code": "1",
        "message": word,
        "term-ms": "300",
    }
    spec = job_spec(random)
    (role,) = spec.roles
    template = role.template.model_copy(update={"annotations": {SIMULATE_PREFIX + key: notes[key] for key in notes}})
    alone = {"replicas": 1, "min_replicas": None, "max_replicas": None, "exclusive": False, "template": template}
    session = Session(kind="notebook", idle_seconds=idle, warning_seconds=warning, on_idle=on_idle)
    update = {"name": name, "roles": (role.model_copy(update=alone),), "session": session, "groups": ()}
    of_a_person = {
        "user": random.choice(PEOPLE),
        "time_limit_seconds": None,
        "launcher": None,
        "checkpoint": None,
    }
    return spec.model_copy(update=update | of_a_person)
