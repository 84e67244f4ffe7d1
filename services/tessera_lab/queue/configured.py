"""
Trace jobs on a shard of their own: the policies as configurations, nodes, and each job as a gang of pods.

All virtual clusters are one tenant and one user, so that nothing but the queue's order decides between them: between
tenants and users the platform would share, as it does under a policy whose name ends with `-users` or `-share`. A job
is named after its virtual cluster, since that is all that tells jobs apart beforehand.
"""

from collections.abc import Mapping

from tessera.testkit.end_to_end.services import MIB, job
from tessera_lab.traces.philly import TraceJob
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.job import JobSpec, Resources
from tessera_schemas.shard.recommended import POLICY as RECOMMENDED
from tessera_schemas.work.tenant_shares import FairShare

QUEUE, TENANT = "default", "trace"
CPU_MILLI_PER_GPU = 1000
NAME_LENGTH_MAX = 60
PATIENCE = {found.field: found.value for found in RECOMMENDED if found.field == "order_patience_seconds"}
POLICIES: Mapping[str, tuple[dict[str, str], Policy]] = {
    "fifo": ({"queueing_strategy": "strict_fifo"}, Policy(placement="bestfit")),
    "skip": ({}, Policy(placement="bestfit")),
    "reserve": ({}, Policy(placement="bestfit", backfill="reserve")),
    "expected": ({"order": "expected"}, Policy(placement="bestfit", backfill="reserve", **PATIENCE)),
}
"""What the queue says, and the shard's policy."""
GAIN = {found.field: found.value for found in RECOMMENDED if found.field == "defragment_min_gain_gpu_seconds"}
MOVING = {"defragment": True, **GAIN}
WHOLE_POOL = ({"resource": "gpu_milli", "nominal": 0, "part_percent": 100},)
"""The quota that `config init` writes: `gpus: all`."""
WEEK_SECONDS = 7 * 24 * 3600
USED = {"fair_share": FairShare(half_life_seconds=WEEK_SECONDS)}
SHARED: Mapping[str, tuple[Mapping[str, object], Policy]] = {
    **{f"{name}-users": found for name, found in POLICIES.items()},
    **{f"{name}-share": (how, rules.model_copy(update=USED)) for name, (how, rules) in POLICIES.items()},
}
"""Each virtual cluster a user of its own: by what users hold now, and by what they held over weeks besides."""
THROUGH = {**POLICIES, **SHARED}
"""Configurations that the services replay."""
ALONE: Mapping[str, tuple[Mapping[str, object], Policy]] = {
    **THROUGH,
    **{f"{name}-moving": (how, rules.model_copy(update=MOVING)) for name, (how, rules) in POLICIES.items()},
    **{f"{name}-quota": ({**how, "quotas": WHOLE_POOL}, rules) for name, (how, rules) in POLICIES.items()},
}
"""
Configurations for the engine alone, which counts jobs that are started again; relocations as recommended.

With `-quota` the queue has the pool's GPUs as its quota, without it none.
"""


def config_of(policy: str) -> ConfigBody:
    """Configuration of a shard whose only queue goes by the policy."""
    order, rules = ALONE[policy]
    queue = Queue.model_validate({"name": QUEUE, **order})
    unlimited = Tenant(name=TENANT, limits=Limits(jobs=None, submits_per_second=None, bytes_per_second=None))
    return ConfigBody(tenants=(unlimited,), queues=(queue,), policy=rules)


def spec_of(one: TraceJob, node_gpus: int, policy: str) -> JobSpec:
    """The job as it is submitted."""
    spec = job(name_of(one.vc), QUEUE, pods_of(one.gpus, node_gpus), one.duration_s)
    return spec.model_copy(update={"user": name_of(one.vc)}) if policy in SHARED else spec


def name_of(vc: str) -> str:
    """A job's name may hold less than a virtual cluster's."""
    return f"vc-{vc.encode().hex()}"[:NAME_LENGTH_MAX]


def pods_of(gpus: int, node_gpus: int) -> list[tuple[int, Resources, tuple[str, ...]]]:
    """One pod up to a node's GPUs; else one per whole node, and one for the rest."""
    whole, rest = divmod(gpus, node_gpus)
    return [(many, resources_of(each), ()) for many, each in ((whole, node_gpus), (1, rest)) if many and each]


def resources_of(gpus: int) -> Resources:
    """CPU and memory in a fixed proportion, so that GPUs alone decide."""
    return Resources(cpu_milli=CPU_MILLI_PER_GPU * gpus, memory_bytes=MIB * gpus, gpus=gpus)


def by_arrival(job: TraceJob) -> tuple[int, ...]:
    """The published figures stand on this order: of jobs submitted in the same second the shorter goes first."""
    return job.submit_s, job.duration_s, job.gpus
