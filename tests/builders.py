"""Builders that set only what a test is about; everything else is small and valid."""

from collections.abc import Sequence
from typing import Any

from tessera_schemas.base import Strict, job_id, run_id
from tessera_schemas.cluster.resource_kinds import FURTHER
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota, Tenant
from tessera_schemas.facts import ConfigProposed, JobAdmitted, NodeSeen, RunAbsent, WorkRefused, owner
from tessera_schemas.job import JobSpec, Resources, Role, Template
from tessera_schemas.ledger import GENESIS, AnyRecord, EpochOpened, LedgerMessage, TakenFact
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import chain_hash
from tessera_schemas.shard.orders import Order
from tessera_schemas.work.placement import Placement

SHARD = "main"
GIB = 2**30


def role(name: str = "worker", replicas: int = 1, gpus: int = 1, gpu_milli: int = 0, **more: Any) -> Role:
    named = ("gpu_memory_bytes", "mig_profile", "gpu_parts", "devices", "numa_policy", *FURTHER)
    further = {name: more.pop(name) for name in named if name in more}
    asked = Resources(
        cpu_milli=more.pop("cpu_milli", 1000),
        memory_bytes=more.pop("memory_bytes", GIB),
        gpus=gpus,
        gpu_milli=gpu_milli,
        **further,
    )
    return Role(name=name, replicas=replicas, resources=asked, template=Template(image="train:1"), **more)


def job_spec(*roles: Role, name: str = "train", queue: str = "research", **more: Any) -> JobSpec:
    return JobSpec(name=name, queue=queue, roles=roles or (role(),), **more)


def admitted(key: str = "k1", spec: JobSpec | None = None, tenant: str = "lab") -> JobAdmitted:
    return JobAdmitted(
        kind="job_admitted", job_id=job_id(SHARD, tenant, key), tenant=tenant, key=key, spec=spec or job_spec()
    )


def node_seen(name: str = "node-a", gpus: int = 8, **more: Any) -> NodeSeen:
    size = {"cpu_milli": 64_000, "memory_bytes": 512 * GIB, "pods": 110, "gpu_model": "h100", **more}
    return NodeSeen(kind="node_seen", name=name, gpus=gpus, **size)


def config_body(*queues: Queue, tenants: Sequence[str] = ("lab", "other"), **more: Any) -> ConfigBody:
    """Nobody is told what is left of pools, unless a test says how often."""
    policy = Policy.model_validate(more.pop("policy", {}))
    if "fragmentation_event_seconds" not in policy.model_fields_set:
        policy = policy.model_copy(update={"fragmentation_event_seconds": 0})
    more["policy"] = policy
    return ConfigBody(
        tenants=tuple(Tenant(name=name) for name in tenants), queues=queues or (Queue(name="research"),), **more
    )


def queue(name: str = "research", pool: str = "default", **quotas: int) -> Queue:
    """`queue(gpu_milli=8000)` has that nominal quota."""
    named = tuple(Quota.model_validate({"resource": resource, "nominal": n}) for resource, n in quotas.items())
    return Queue(name=name, pool=pool, quotas=named)


def config_proposed(body: ConfigBody | None = None, expected_version: int = 0, abandon: bool = False) -> ConfigProposed:
    body = body or config_body()
    return ConfigProposed(kind="config_proposed", expected_version=expected_version, body=body, abandon=abandon)


def run_absent(run: str) -> RunAbsent:
    return RunAbsent(kind="run_absent", run_id=run)


def placement(
    rank: int = 0, node: str = "node-a", devices: Sequence[int] = (0,), gpu_milli: int = 1000, role: str = "worker"
) -> Placement:
    return Placement(rank, role, node, tuple(devices), gpu_milli)


def first_run(key: str = "k1", tenant: str = "lab") -> str:
    return run_id(job_id(SHARD, tenant, key), 1)


class Chain:
    """Ledger messages that continue each other; `add` gives the stored bytes, `stored` all of them."""

    def __init__(self, ts: int = 1_760_000_000_000) -> None:
        self.stored: list[bytes] = []
        self.prev, self.ts, self.epoch, self.facts_upto = GENESIS, ts, 0, 0

    @property
    def n(self) -> int:
        return len(self.stored)

    def add(
        self,
        *records: AnyRecord,
        facts: Sequence[Strict] = (),
        orders: Sequence[Order] = (),
        ms: int = 1000,
        opens: bool = False,
        **changes: Any,
    ) -> bytes:
        """
        The next message, `ms` after the last; the first one opens epoch 1.

        `changes` overrule the envelope; a `TakenFact` among `facts` is taken as it is.
        """
        opens = opens or not self.stored
        self.ts += ms
        self.epoch += opens
        taken = tuple(self._taken(fact) for fact in facts)
        holder = f"scheduler-{self.epoch}"
        opened = (EpochOpened(kind="epoch_opened", epoch=self.epoch, holder=holder),) if opens else ()
        envelope = {
            "v": 1,
            "n": self.n + 1,
            "prev": self.prev,
            "epoch": self.epoch,
            "tx": f"tx-{self.n + 1:08d}",
            "ts": self.ts,
            "engine": "test-1",
            "policy": 1,
            "holder": holder if opens else "",
            "facts_upto": self.facts_upto,
            "facts": taken,
            "orders": tuple(orders),
            "records": (*opened, *records),
            **changes,
        }
        stored = LedgerMessage(**envelope).to_bytes()
        self.prev = chain_hash(self.prev, stored)
        self.stored.append(stored)
        return stored

    def _taken(self, fact: Strict) -> TakenFact:
        if isinstance(fact, TakenFact):
            return fact
        self.facts_upto += 1
        return TakenFact(seq=self.facts_upto, service=owner(fact), fact=fact)


def work_refused(
    group: str = "batch/Job/lab/uid-0",
    refused: bool = True,
    tenant: str = "lab",
    field: str = "metadata.labels[tessera.io/queue]",
    number: int = 0,
) -> WorkRefused:
    """What the binder says of a Job whose queue is not there, or that it is refused no more."""
    why = Reason(code=Code.NO_SUCH_QUEUE, field=field, numbers={"number": number})
    work_id = job_id(SHARD, "", group)
    reasons = (why,) if refused else ()
    return WorkRefused(
        kind="work_refused",
        work_id=work_id,
        tenant=tenant,
        group=group,
        owner="Job/train",
        queue="nowhere",
        reasons=reasons,
    )
