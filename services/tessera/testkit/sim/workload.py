"""
Actions of clients and operators of a simulated shard: submits of every kind, repeats, cancels, holds, priorities,
drains, configurations, and input that must be refused.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from tessera.testkit.sim.devices.asked import RULES, nic_claim
from tessera.testkit.sim.devices.sickness import FENCING, health_policy, reports
from tessera.testkit.sim.loop import EPOCH_MS
from tessera_schemas import commands as c
from tessera_schemas.base import job_id
from tessera_schemas.cluster.gang_groups import GroupRestart, RoleGroup
from tessera_schemas.cluster.pools import DataCaches, Pool
from tessera_schemas.config import ConfigBody, Defaults, Flavor, Level, Policy, PriorityClass, Queue, Quota, Tenant
from tessera_schemas.job import CheckpointPolicy, JobSpec, Resources, Retry, Role, Template, Toleration, Topology
from tessera_schemas.shard.moves import Moves
from tessera_schemas.subjects import control, health_reports, submit
from tessera_schemas.work.arrays import Attachment, Condition, Dependency, JobArray, ServiceSize
from tessera_schemas.work.budgets import Budget, month_text
from tessera_schemas.work.measured_use import SessionDefaults
from tessera_schemas.work.money import FlavorPrice, Money
from tessera_schemas.work.spec_changes import Program
from tessera_schemas.work.templates import JobTemplate, Parameter
from tessera_schemas.work.tenant_shares import Limits

GIB = 2**30
TENANTS = ("red", "blue")
PROJECT = "vlm"
QUEUES = ("research", "prod", "batch")
PIECES_QUEUE = "pieces"
"""A queue without quotas, for jobs of nodes that nobody else can have."""
TIGHT = Quota(resource="gpu_milli", nominal=4000)
NODES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d", "cpu-a")
H100_GPUS, UNTAINTED_GPUS, NODE_GPUS = 8, 20, 4
"""Of the world's nodes, when nothing else is there: what asks for more of them at once would wait for ever."""
DATASET_BYTES = 4_000_000_000
SMALL_CACHES = DataCaches(node_bytes=2 * DATASET_BYTES, kept_seconds=3600)
FLAVORS = (Flavor(name="fast", gpu_models=("H100",)), Flavor(name="slow", gpu_models=("A100",)))
TOLERATES = Toleration(key="dedicated")
"""The taint of one of its nodes."""
CLASSES = ("low", "normal", "high")
RESUME_CLASS = CLASSES[1]
NEW_QUEUE, NEW_CLASS = "night", "top"
"""Names that the last queue and the last class get for a while."""
START_TIMEOUT_SECONDS = 15
HUGE_TENANT, HUGE_KEY = "red", "huge"
"""A job that no node can hold: refused once nodes are known, else it waits until it is cancelled in the end."""


@dataclass(frozen=True, slots=True)
class Command:
    """Command of a client, sent from second `at` on until acknowledged; `key`, `spec`: a submit's; `cancels`: a job."""

    at: float
    subject: str
    data: bytes
    tenant: str = ""
    key: str = ""
    spec: JobSpec | None = None
    cancels: str = ""


def configuration(shard: str, random: Random, expected_version: int = 0, evicts: bool = False) -> Command:
    """
    Configuration, applied at once and again in the middle: then quotas may be lower and queues stopped until
    `settling`.

    `evicts`: quotas are small, and nothing keeps a job from being evicted for another.
    """
    body = _body(random, stops=expected_version > 0)
    if evicts:
        policy = _policy(preset="fair", min_runtime_seconds=0)
        queues = (*(Queue(name=name, quotas=(TIGHT,)) for name in QUEUES), Queue(name=PIECES_QUEUE))
        body = body.model_copy(update={"queues": queues, "policy": policy})
    if not expected_version:
        return apply_config(shard, body, 0)
    body, abandon = _take_away(random, body)
    return apply_config(shard, body, expected_version, random.uniform(4, 8), abandon)


def _take_away(random: Random, body: ConfigBody) -> tuple[ConfigBody, bool]:
    """The configuration without names of live jobs, and whether that is asked for; else the committer may refuse it."""
    queues, classes, tenants = body.queues, body.priority_classes, body.tenants
    choice = random.choice(("nothing", "nothing", "queue", "class", "tenant", "refused"))
    if choice == "queue":
        new = {"name": NEW_QUEUE, "was": QUEUES[-1]}
        queues = tuple(queue.model_copy(update=new) if queue.name == QUEUES[-1] else queue for queue in queues)
    elif choice == "refused":
        queues = tuple(queue for queue in queues if queue.name != QUEUES[1])
    elif choice == "class":
        new = {"name": NEW_CLASS, "was": CLASSES[-1]}
        classes = tuple(c.model_copy(update=new) if c.name == CLASSES[-1] else c for c in classes)
    elif choice == "tenant":
        tenants = tenants[:1]
    abandon = choice == "tenant" or random.random() < 0.5
    there = {None, *(tenant.name for tenant in tenants), *(queue.name for queue in queues)}
    budgets = tuple(each for each in body.budgets if each.tenant in there and each.queue in there)
    update = {"queues": queues, "priority_classes": classes, "tenants": tenants, "budgets": budgets}
    return body.model_copy(update=update), abandon


def settling(shard: str, expected_version: int) -> Command:
    """Command that puts the settled configuration in force, after the expected version."""
    return apply_config(shard, SETTLED, expected_version, abandon=True)


def apply_config(
    shard: str, body: ConfigBody, expected_version: int, at: float = 0.0, abandon: bool = False
) -> Command:
    """Command of an operator that puts a configuration in force."""
    command = c.ApplyConfig(kind="apply_config", v=1, expected_version=expected_version, body=body, abandon=abandon)
    return Command(at, control(shard), command.to_bytes())


def _tenants(bears: tuple[Toleration, ...] = ()) -> tuple[Tenant, ...]:
    """The last of them with these standing tolerations."""
    limits = Limits(jobs=200, gpus_per_job=64, sessions=3, sessions_per_user=2)
    found = [Tenant(name=name, limits=limits, promises=True) for name in TENANTS]
    return (*found[:-1], found[-1].model_copy(update={"tolerations": bears}))


def _policy(**more: Any) -> Policy:
    return Policy.model_validate({"start_timeout_seconds": START_TIMEOUT_SECONDS, "key_memory_seconds": 3600, **more})


HOST = Level(name="host", label="kubernetes.io/hostname")
TUNE = JobTemplate(
    name="tune",
    parameters=(
        Parameter(name="seconds", type="int", default=1, min=0, max=60),
        Parameter(name="gpus", type="int", default=1, min=1, max=4),
    ),
    spec={
        "name": "tune",
        "queue": QUEUES[0],
        "roles": [
            {
                "name": "worker",
                "resources": {"cpu_milli": 500, "memory_bytes": GIB, "gpus": "{gpus}"},
                "template": {"image": "tune:1", "annotations": {"tessera.io/simulate-seconds": "{seconds}"}},
            }
        ],
        "launcher": "torchrun",
        "ttl_seconds_after_finished": 2,
    },
)
TURN = "22:14"
"""Time of day in the middle of a run, at which hours of lending end or begin."""
CLOSING = ({"hours": f"20:00-{TURN}", "percent": 50}, {"hours": f"{TURN}-20:00", "percent": 0})
OPENING = ({"hours": f"20:00-{TURN}", "percent": 0}, {"hours": f"{TURN}-20:00", "percent": 75})
ASKS_FIRST: dict[str, Any] = {"move_answer_seconds": 2, "moves": Moves(veto_seconds=5)}
ENOUGH = Quota(resource="gpu_milli", nominal=64_000)
SETTLED = ConfigBody(
    tenants=_tenants(),
    queues=(
        Queue(name="all"),
        Queue(name=PIECES_QUEUE),
        *(Queue(name=name, parent="all", quotas=(ENOUGH,)) for name in QUEUES[:-1]),
        Queue(name=QUEUES[-1], parent="all", quotas=(ENOUGH,), was=NEW_QUEUE),
    ),
    priority_classes=tuple(
        PriorityClass(name=name, value=value, was=NEW_CLASS if name == CLASSES[-1] else None)
        for name, value in zip(CLASSES, (-100, 0, 100), strict=True)
    ),
    templates=(TUNE,),
    policy=_policy(grow_after_seconds=1, defragment=True, min_runtime_seconds=0, **ASKS_FIRST),
)
"""Every gang has quota, nothing is stopped and nobody is evicted, but to move: all that is left can end."""


def _body(random: Random, stops: bool) -> ConfigBody:
    flavors = FLAVORS if random.random() < 0.4 else ()
    tree = Queue(name="all", quotas=_quotas(random, flavors, 4, {}) if random.random() < 0.5 else ())
    body = ConfigBody(
        tenants=_tenants(),
        queues=(tree, *(_queue(random, name, flavors, stops) for name in QUEUES), Queue(name=PIECES_QUEUE)),
        flavors=flavors,
        templates=(TUNE,),
        defaults=Defaults(sessions=SessionDefaults(resume_class=RESUME_CLASS)),
        policy=_policy(
            preset=random.choice(("off", "priority", "fair", "fair", "fair")),
            min_runtime_seconds=random.choice((0, 0, 1)),
            evictions_max=random.choice((0, 1, 3, 5)),
            earmark_seconds=random.choice((1, 5, 20)),
            stop_patience_seconds=random.choice((1, 1, 60)),
            grow_after_seconds=random.choice((0, 1, 2)),
            start_timeout_seconds=random.choice((2, START_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS)),
            node_lost_seconds=random.choice((0, 1, 3)),
            requeues_max=random.choice((1, 2, 10)),
            steady_seconds=random.choice((1, 3600)),
            cordoned=random.choice(("restart", "restart", "keep")),
            cordoned_seconds=random.choice((0, 1)),
            mass_stop_percent=random.choice((1, 1, 1, 25, 100)),
            mass_stop_seconds=random.choice((2, 10, 30)),
            idle=random.choice(("off", "warn", "requeue", "fail")),
            idle_warn_seconds=1,
            idle_reclaim_seconds=1,
            backfill=random.choice(("off", "reserve", "reserve")),
            backfill_patience_seconds=random.choice((0, 0, 1, 5)),
            backfill_closing_seconds=random.choice((2, 10, 1_209_600)),
            backfill_depth=random.choice((1, 1, 3)),
            defragment=random.random() < 0.6,
        ),
    )
    # By what was drawn: a draw of its own would change the worlds of all seeds.
    kept = {1: 0, 5: 50, 20: 100}[body.policy.earmark_seconds]
    body = body.model_copy(update={"policy": body.policy.model_copy(update={"kept_beside_gpus_percent": kept})})
    if body.policy.min_runtime_seconds:
        body = body.model_copy(update={"policy": body.policy.model_copy(update=ASKS_FIRST)})
    if body.policy.backfill_depth == 3:
        near = body.policy.model_copy(update={"gang_topology": "preferred"})
        body = body.model_copy(update={"policy": near, "topology": (HOST,)})
    if body.policy.stop_patience_seconds == 1:
        body = body.model_copy(update={"policy": body.policy.model_copy(update={"data_caches": SMALL_CACHES})})
    if spares := {1: 1, 5: 2}.get(body.policy.backfill_patience_seconds):
        body = body.model_copy(update={"pools": (Pool(name="default", spare_nodes=spares),)})
    if body.policy.backfill_closing_seconds == 10:
        body = body.model_copy(update=_budgets(body.flavors or (Flavor(name="any"),)))
    if body.policy.requeues_max != 10:
        retries = body.policy.requeues_max
        health = health_policy(retries * 20, TENANTS[0], QUEUES[0], test_fails=retries == 2)
        body = body.model_copy(update={"health": health, "fencing": FENCING})
    return body.model_copy(update={"tenants": _tenants((TOLERATES,))}) if body.policy.earmark_seconds == 5 else body


def _budgets(flavors: tuple[Flavor, ...]) -> dict[str, Any]:
    """Fields of a configuration by which each GPU costs about a unit a second, and budgets are soon spent."""
    prices = tuple(FlavorPrice(flavor=f.name, gpu_hour_micros=3_600 * 10**6 * (i + 1)) for i, f in enumerate(flavors))
    budgets = (
        Budget(tenant=TENANTS[0], amount=30),
        Budget(tenant=TENANTS[1], project=PROJECT, amount=8),
        Budget(queue=QUEUES[0], amount=30, when_spent="last"),
        Budget(queue=QUEUES[1], amount=20, when_spent="refuse"),
    )
    return {"flavors": flavors, "money": Money(currency="EUR", prices=prices), "budgets": budgets}


def _grant(shard: str, at: float) -> Command:
    """Grant of an operator, where that budget is configured."""
    said: dict[str, Any] = {"budget": f"tenant/{TENANTS[0]}", "month": month_text(EPOCH_MS), "why": "a deadline"}
    return Command(at, control(shard), c.GrantBudget(kind="grant_budget", v=1, amount=20, **said).to_bytes())


def _queue(random: Random, name: str, flavors: tuple[Flavor, ...], stops: bool) -> Queue:
    """Queue of the tree, usually lending to the others."""
    parent = "all" if random.random() < 0.8 else None
    choices = {"borrowing_limit": (None, 2000, 8000), "lending_limit": (None, 0, 4000)}
    limits = {limit: random.choice(values) for limit, values in choices.items() if parent}
    stopped = random.choice(("none", "hold", "hold_and_drain")) if stops and random.random() < 0.3 else "none"
    # By what was drawn: a draw of its own would change the worlds of all seeds.
    of_limit: dict[int | None, Any] = {4000: CLOSING, None: OPENING if limits.get("borrowing_limit") else ()}
    return Queue.model_validate(
        {
            "name": name,
            "parent": parent,
            "weight": random.choice((0, 1, 1, 3)),
            "quotas": _quotas(random, flavors, random.randrange(2, 7 if stops else 11), limits),
            **random.choice(({}, {"order": "expected"}, {"queueing_strategy": "strict_fifo"})),
            "stop_policy": stopped,
            "lending": of_limit.get(limits.get("lending_limit"), ()) if parent else (),
        }
    )


def _quotas(random: Random, flavors: tuple[Flavor, ...], gpus: int, limits: dict[str, int | None]) -> tuple[Quota, ...]:
    names = [flavor.name for flavor in flavors] or [""]
    random.shuffle(names)
    values = {"resource": "gpu_milli", "nominal": gpus * 1000, **limits}
    return tuple(Quota.model_validate({**values, "flavor": name}) for name in names)


def commands(shard: str, random: Random, jobs: int, seconds: float, evicts: bool = False) -> list[Command]:
    """Commands with at least `jobs` submits, two or more of them gangs, and holds, cancels and others around them."""
    made: list[Command] = []
    for index in range(jobs):
        at, tenant = random.uniform(0.5, seconds), random.choice(TENANTS)
        spec = job_spec(random, gang=index < 2 or random.random() < 0.15)
        spec = spec.model_copy(update={"project": PROJECT if index % 3 == 0 else ""})
        made.append(_first_submit(shard, random, at, tenant, f"key-{index}", spec))
        if random.random() < 0.15:
            made.append(submit_job(shard, at + random.uniform(0, 3), tenant, f"key-{index}", spec))
        if random.random() < 0.05:
            made.append(submit_job(shard, at + random.uniform(0, 3), tenant, f"key-{index}", job_spec(random)))
        if random.random() < 0.2:
            made.append(cancel(shard, tenant, f"key-{index}", at + random.uniform(0, 6), now=random.random() < 0.3))
        made += _controls(shard, random, tenant, job_id(shard, tenant, f"key-{index}"), at)
    for body in (b"{", b"[]", b'{"kind":"submit_job","v":1,"key":"x","spec":{}}', b'{"kind":"submit_job","v":9}'):
        made.append(Command(random.uniform(0.5, seconds), submit(shard, random.choice(TENANTS)), body))
    made.append(submit_job(shard, random.uniform(0.5, seconds), HUGE_TENANT, HUGE_KEY, job_spec(random, gpus=64)))
    made.append(configuration(shard, random, expected_version=1, evicts=evicts))
    for _ in range(random.randrange(4)):
        made += _drains(shard, random, seconds)
    said = reports(Random(len(made)), NODES, seconds)
    made += [Command(when, health_reports(shard), report) for when, report in said]
    made.append(_grant(shard, seconds * 0.6))
    made += _related(shard, random, max(6, jobs // 4), seconds)
    made += _service(shard, Random(f"service {made[-1].at}"), seconds)
    made += _attached(shard, Random(f"attached {shard} {made[0].at}"), seconds)
    return sorted(made, key=lambda command: (command.at, command.data))


def _related(shard: str, random: Random, jobs: int, seconds: float) -> list[Command]:
    """Arrays, and jobs that wait for others or for a time; each follows only what comes before it."""
    made: list[Command] = []
    before: list[tuple[str, str, JobArray | None]] = []
    for index in range(jobs):
        at, tenant, key = seconds * (index + 1) / jobs, random.choice(TENANTS), f"related-{index}"
        follows = random.choice([each for each in before if each[0] == tenant] or [None])
        asked = _dependency(shard, random, tenant, follows)
        array = JobArray(tasks=random.choice(("0-5", "1,3,8-11", "0-30:10")), limit=random.choice((None, 1, 2)))
        own = array if random.random() < 0.5 else None
        if follows is not None and asked and asked[0].condition == "aftercorr":
            own = follows[2]
        update: dict[str, Any] = {"array": own, "after": asked, "name": f"related-{random.randrange(3)}"}
        if random.random() < 0.2:
            update["begin_ts"] = EPOCH_MS + int(1000 * (at + 2))
        made.append(submit_job(shard, at, tenant, key, job_spec(random).model_copy(update=update)))
        made += [cancel(shard, tenant, key, at + random.uniform(0, 6))] * (random.random() < 0.2)
        made += _controls(shard, random, tenant, job_id(shard, tenant, key), at)
        before.append((tenant, key, own))
    return made


def _service(shard: str, random: Random, seconds: float) -> list[Command]:
    """In every other world a service that is scaled up and down, now and then too far, and is cancelled in the end."""
    if random.random() < 0.5:
        return []
    tenant, at, key, least = random.choice(TENANTS), random.uniform(0.5, seconds / 2), "service", random.randrange(2)
    size = ServiceSize(min_replicas=least, max_replicas=4, replicas=random.randrange(least, 4))
    spec, retry = job_spec(random), Retry(backoff_seconds=1, backoff_max_seconds=4)
    roles = tuple(role.model_copy(update={"min_replicas": None, "max_replicas": None}) for role in spec.roles[:1])
    update = {"service": size, "roles": roles, "time_limit_seconds": None, "name": key, "retry": retry}
    made = [submit_job(shard, at, tenant, key, spec.model_copy(update=update)), cancel(shard, tenant, key, seconds + 1)]
    for _ in range(random.randrange(1, 5)):
        scaled = c.ScaleService(
            kind="scale_service", v=1, job_id=job_id(shard, tenant, key), replicas=random.randrange(6)
        )
        made.append(Command(random.uniform(at, seconds), submit(shard, tenant), scaled.to_bytes(), tenant))
    times = sorted(random.uniform(at, seconds) for _ in range(random.randrange(4)))
    rolled = (_rollout(random, job_id(shard, tenant, key), roles[0], n) for n in range(1, len(times) + 1))
    wishes = zip(times, rolled, strict=True)  # one that comes too early changes nothing
    return [*made, *(Command(when, submit(shard, tenant), wish.to_bytes(), tenant) for when, wish in wishes)]


def _rollout(random: Random, job: str, role: Role, revision: int) -> c.RollService:
    undo, missing = revision > 1 and random.random() < 0.3, random.randrange(2)
    program = Program.made_of(role.template).model_copy(update={"image": f"serve:{revision}"})
    wish: dict[str, Any] = {"revision": revision, "undo": undo, "programs": {} if undo else {role.name: program}}
    pace = {"max_surge": 1 + random.randrange(2) - missing, "max_unavailable": missing, "min_ready_seconds": missing}
    return c.RollService(kind="roll_service", v=1, job_id=job, **wish, **pace)


def _attached(shard: str, random: Random, seconds: float) -> list[Command]:
    """
    In every other world a learner of two elastic roles and its rollout workers; pods move between the roles, and now
    and then the learner is put back in line.
    """
    if random.random() < 0.5:
        return []
    at, tenant, target = random.uniform(0.5, seconds / 2), random.choice(TENANTS), "learner"
    learner = job_id(shard, tenant, target)
    made = [submit_job(shard, at, tenant, target, _with_two_roles(job_spec(random)))]
    for index in range(random.randrange(1, 5)):
        steps = random.choice(({"trainer": -1, "rollout": 1}, {"trainer": 1, "rollout": -1}, {"rollout": -1}))
        shift = c.ShiftRoles(kind="shift_roles", v=1, job_id=learner, roles=steps, key=f"shift-{index}").to_bytes()
        sent = at + random.uniform(1, 8)
        made += [Command(sent, submit(shard, tenant), shift)] * random.choice((1, 1, 2))
    for index in range(random.randrange(1, 4)):
        attached = Attachment(job=learner, on_detach=random.choice(("requeue", "requeue", "cancel")))
        spec = job_spec(random).model_copy(update={"attach_to": attached, "name": "rollout"})
        made.append(submit_job(shard, at + random.uniform(0.2, 3), tenant, f"rollout-{index}", spec))
        made += _controls(shard, random, tenant, job_id(shard, tenant, f"rollout-{index}"), at)
    if random.random() < 0.5:
        requeued = c.RequeueJob(kind="requeue_job", v=1, job_id=learner).to_bytes()
        made.append(Command(at + random.uniform(0.5, 5), submit(shard, tenant), requeued))
    return made


def _with_two_roles(spec: JobSpec) -> JobSpec:
    """The job as a trainer and a rollout of one to three pods each."""
    size = {"replicas": 1, "min_replicas": 1, "max_replicas": 3, "exclusive": False}
    roles = tuple(spec.roles[0].model_copy(update={"name": name, **size}) for name in ("trainer", "rollout"))
    return spec.model_copy(update={"roles": roles, "groups": (), "launcher": None, "name": "learner"})


def _dependency(
    shard: str, random: Random, tenant: str, other: tuple[str, str, JobArray | None] | None
) -> tuple[Dependency, ...]:
    """A condition on a job of the tenant, or on all its namesakes; now and then on a job that does not exist."""
    if random.random() < 0.1:
        return (Dependency(condition="singleton"),)
    if other is None or random.random() < 0.2:
        return ()
    key = "nobody" if random.random() < 0.05 else other[1]
    choices: tuple[Condition, ...] = ("afterok", "afternotok", "afterany", "after", "aftercorr")
    condition = random.choice(choices if other[2] is not None else choices[:-1])
    return (Dependency(condition=condition, job=job_id(shard, tenant, key)),)


def cancel(shard: str, tenant: str, key: str, at: float = 0.0, now: bool = False) -> Command:
    """Command of a tenant to cancel the job of a key, sent `at` seconds into the run."""
    job = job_id(shard, tenant, key)
    command = c.CancelJob(kind="cancel_job", v=1, job_id=job, now=now)
    return Command(at, submit(shard, tenant), command.to_bytes(), tenant, cancels=job)


def release(shard: str, job: str, at: float = 0.0) -> Command:
    """Release by an operator, who may release any job."""
    return Command(at, control(shard), c.ReleaseJob(kind="release_job", v=1, job_id=job).to_bytes())


def drain(shard: str, node: str, at: float = 0.0, evict: bool = False, undo: bool = False) -> Command:
    """Command of an operator to drain a node, or with `undo` to end that, sent `at` seconds into the run."""
    command = c.DrainNode(kind="drain_node", v=1, node=node, evict=evict, undo=undo, why="new fans")
    return Command(at, control(shard), command.to_bytes())


def _drains(shard: str, random: Random, seconds: float) -> list[Command]:
    """A node that an operator wants empty for a while; twice in a row changes nothing but may evict."""
    node, at, evict = random.choice(NODES), random.uniform(1.0, seconds), random.random() < 0.5
    undo = drain(shard, node, at + random.uniform(0.5, 4), undo=True)
    return [drain(shard, node, at), drain(shard, node, at + 0.1, evict=evict), undo]


def _controls(shard: str, random: Random, tenant: str, job: str, at: float) -> list[Command]:
    """Commands of a tenant, or now and then an operator, about one job; a held job may be forgotten."""
    made: list[Command] = []
    subject = control(shard) if random.random() < 0.2 else submit(shard, tenant)
    if random.random() < 0.2:
        made.append(Command(at + random.uniform(0, 2), subject, c.HoldJob(kind="hold_job", v=1, job_id=job).to_bytes()))
        if random.random() < 0.7:
            made.append(release(shard, job, at + random.uniform(0.5, 4)))
    if random.random() < 0.15:
        path, attempt = f"/data/{random.randrange(9)}", random.choice((0, 1, 2))
        report = c.ReportCheckpoint(kind="report_checkpoint", v=1, job_id=job, path=path, attempt=attempt)
        made.append(Command(at + random.uniform(0.5, 6), submit(shard, tenant), report.to_bytes()))
        said = c.AnswerMove(kind="answer_move", v=1, job_id=job, accept=attempt > 0, attempt=attempt)
        made.append(Command(made[-1].at + 0.5, submit(shard, tenant), said.to_bytes()))
    if random.random() < 0.15:
        command = c.SetPriority(kind="set_priority", v=1, job_id=job, priority_class=random.choice(CLASSES))
        made.append(Command(at + random.uniform(0, 4), submit(shard, tenant), command.to_bytes()))
    if random.random() < 0.1:
        moved = c.MoveJob(kind="move_job", v=1, job_id=job, queue=random.choice((*QUEUES, NEW_QUEUE)))
        made.append(Command(at + random.uniform(0, 4), subject, moved.to_bytes()))
    own = Random(f"requeue {job} {at}")  # so that workloads of earlier seeds stay what they were
    if own.random() < 0.1:
        requeued = c.RequeueJob(kind="requeue_job", v=1, job_id=job)
        made.append(Command(at + own.uniform(0, 6), subject, requeued.to_bytes()))
    made += _updates(Random(f"update {job} {at}"), subject, job, at)
    return made + _resizes(Random(f"resize {job} {at}"), subject, job, at)


def _resizes(random: Random, subject: str, job: str, at: float) -> list[Command]:
    """Now and then other CPU and memory for pods of a run, more than a node has, too; once more before it is done."""
    made = list[Command]()
    for index in range(random.choice((0, 0, 0, 0, 1, 2))):
        size = {"cpu_milli": random.choice((500, 1000, 2000, 4000, 90_000)), "role": random.choice((None, "worker"))}
        size |= {"memory_bytes": random.choice((GIB // 2, GIB, 4 * GIB))} if random.random() < 0.5 else {}
        asked = c.ResizePods.model_validate(
            size | {"kind": "resize_pods", "v": 1, "job_id": job, "key": f"size-{index}"}
        )
        made += [Command(at + random.uniform(0.5, 6), subject, asked.to_bytes())] * random.choice((1, 1, 2))
    return made


def _updates(random: Random, subject: str, job: str, at: float) -> list[Command]:
    """Now and then a change of the job's spec, perhaps while it runs, where little of it is allowed."""
    if random.random() >= 0.15:
        return []
    sent = at + random.uniform(0, 5)
    changes: dict[str, Any] = {
        "time_limit_seconds": random.choice((0, 1, 3, 60)),
        "begin_ts": EPOCH_MS + int(1000 * (sent + random.choice((-1, 1)))),
        "name": random.choice(("renamed", "train")),
        "after": (),
    }
    chosen = random.sample(sorted(changes), k=random.choice((1, 1, 2)))
    said = {"kind": "update_job", "v": 1, "job_id": job} | {field: changes[field] for field in chosen}
    return [Command(sent, subject, c.UpdateJob.model_validate(said).to_bytes())]


def _first_submit(shard: str, random: Random, at: float, tenant: str, key: str, spec: JobSpec) -> Command:
    """Now and then of a template, or held until somebody lets it go."""
    if random.random() < 0.1:
        parameters = {"seconds": random.randrange(1, 6), "gpus": random.choice((1, "2", 9))}
        asked = c.SubmitTemplate(kind="submit_template", v=1, key=key, template="tune", parameters=parameters)
        return Command(at, submit(shard, tenant), asked.to_bytes(), tenant, key)
    return submit_job(shard, at, tenant, key, spec, held=random.random() < 0.05)


def submit_job(shard: str, at: float, tenant: str, key: str, spec: JobSpec, held: bool = False) -> Command:
    """Command of a tenant to run a job, held or not."""
    data = c.SubmitJob(kind="submit_job", v=1, key=key, spec=spec, held=held).to_bytes()
    return Command(at, submit(shard, tenant), data, tenant, key, spec)


def _groups(role: Role) -> tuple[RoleGroup, ...]:
    """Pairs of pods, each on one node that could hold two, near all others; most start again, of some jobs all once."""
    held, odd = 2 * role.resources.gpus <= NODE_GPUS, role.resources.cpu_milli
    pair = GroupRestart(max_restarts=2, backoff_seconds=odd % 2) if odd % 8 < 5 else None
    whole = GroupRestart(max_restarts=1, backoff_seconds=0) if odd % 8 == 0 and role.gang == role.most else None
    host = Topology(level=HOST.label, required=held)
    near = Topology(level=HOST.label, required=False)
    all_pods = RoleGroup(name="all", topology=near, restart=whole)
    return all_pods, RoleGroup(name="pair", within="all", pods={"worker": 2}, topology=host, restart=pair)


def job_spec(random: Random, gang: bool = False, gpus: int | None = None) -> JobSpec:
    """Spec drawn at random: whole GPUs, a share or CPU only, elastic by chance, with pods that end by themselves."""
    kind = random.choice(("whole", "whole", "share", "cpu"))
    asked: dict[str, Any] = {"cpu_milli": random.randrange(500, 8000), "memory_bytes": random.randrange(1, 16) * GIB}
    if gpus is not None:
        asked["gpus"] = gpus
    elif kind == "whole" or gang:
        asked["gpus"] = random.choice((1, 1, 2, 4))
    elif kind == "share":
        share = random.choice((100, 250, 500, 700))
        asked |= {"mig_profile": "1g.10gb"} if share == 100 else {"gpu_milli": share}
    exit_code = "1" if random.random() < 0.12 else "0"
    template = Template(
        image="train:1",
        annotations={
            "tessera.io/simulate-seconds": f"{random.uniform(0.05, random.choice((4, 12))):.2f}",
            "tessera.io/simulate-rank-seconds": random.choice(("0", "0", "2")) if gang else "0",
            "tessera.io/simulate-checkpoint-seconds": random.choice(("0", "0.5", "2")),
            "tessera.io/simulate-exit-code": exit_code,
            "tessera.io/simulate-term-ms": str(random.randrange(10, 3000)),
            "tessera.io/simulate-start-seconds": random.choice(("0", "0", "0", "0.7")),
            **({"tessera.io/simulate-notice-seconds": "0.3"} if random.random() < 0.3 else {}),
            **({"tessera.io/simulate-resize": "never"} if asked["cpu_milli"] % 5 == 0 else {}),
        },
    )
    replicas, elastic = random.randrange(2, 7) if gang else 1, random.random() < 0.35 and gpus is None
    in_pairs = gang and replicas % 2 == 0 and asked["cpu_milli"] % 4 < 2
    # By an amount that was drawn already: another draw would make another life of every seed.
    if asked.get("gpus") and not (gang or gpus) and asked["cpu_milli"] % 4 == 0:
        asked["claims"] = (nic_claim(fast=asked["cpu_milli"] % 8 == 0),)
    needed = replicas * asked.get("gpus", 0)
    alone = needed == NODE_GPUS and replicas == 1 and gpus is None and asked["cpu_milli"] % 2 == 0
    role = Role(
        name="worker",
        replicas=replicas,
        max_replicas=replicas + random.randrange(1, 5) * (1 + in_pairs) if elastic else None,
        resources=Resources(**asked),
        gpu_models=("H100",)
        if random.random() < 0.1 and needed <= H100_GPUS and not alone and "mig_profile" not in asked
        else (),
        tolerations=(TOLERATES,) if random.random() < 0.5 or needed > UNTAINTED_GPUS else (),
        template=template,
        release="together" if random.random() < 0.1 else "pod",
        # Else what no model holds whole would wait for ever, as it should.
        mixed_models=needed > H100_GPUS,
        exclusive=alone,
    )
    return JobSpec(
        name=f"job-{random.randrange(1000)}",
        queue=random.choice(QUEUES),
        priority_class=random.choice(CLASSES),
        preemptible=random.random() < 0.85,
        roles=(role,),
        groups=_groups(role) if in_pairs else (),
        time_limit_seconds=2 if random.random() < 0.1 else None,
        termination_grace_seconds=random.choice((0, 1, 2)),
        ttl_seconds_after_finished=random.choice((0, 2, 6)),
        retry=Retry(
            max_attempts=random.choice((2, 4, 8)),
            backoff_seconds=random.choice((0, 1)),
            backoff_max_seconds=4,
            on_failure=random.random() < 0.5,
            give_up_seconds=random.choice((5, 1_209_600, 1_209_600)),
            rules=RULES.get(asked["cpu_milli"] % 16, ()),
        ),
        checkpoint=CheckpointPolicy(interval_seconds=1, notice_seconds=random.choice((0, 1, 4)))
        if random.random() < 0.5
        else None,
        launcher="torchrun" if random.random() < 0.3 else None,
    )
