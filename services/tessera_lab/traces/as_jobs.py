"""Pods and nodes of the filling traces as the platform takes them: jobs of one pod, in one queue, under one policy."""

from tessera.client.outcomes import Exit, Failure
from tessera.testkit.end_to_end.services import MIB, job
from tessera_lab.traces.alibaba import WHOLE, TraceNode, TracePod
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.job import JobSpec, Resources

TENANT, QUEUE = "trace", "default"
PLACEMENTS = "tessera", "fgd", "bestfit", "gpu-packing", "dotprod", "random"


def config(policy: str) -> ConfigBody:
    """
    Configuration in which any job that fits starts, placed by `policy`. Raises Failure for a policy that the platform
    does not have.
    """
    if policy not in PLACEMENTS:
        raise Failure(Exit.USAGE, f"lab: the services place by {', '.join(PLACEMENTS)}, not by {policy}")
    tenant, rules = (
        Tenant(name=TENANT, limits=Limits(jobs=None, submits_per_second=None, bytes_per_second=None)),
        Policy.model_validate({"placement": policy}),
    )
    return ConfigBody(tenants=(tenant,), queues=(Queue(name=QUEUE),), policy=rules)


def named(node: TraceNode, place: int) -> NodeRow:
    """A node whose name carries its place in the run's order, which decides between nodes that are equally good."""
    return NodeRow.sized(f"node-{place:05d}", node.cpu_milli, node.memory_mib, node.gpus, node.model)


def spec(pod: TracePod, seconds: float) -> JobSpec:
    """The pod as a job that ends by itself after so long."""
    share = pod.gpus == 1 and pod.gpu_milli < WHOLE
    asked = Resources(
        cpu_milli=max(1, pod.cpu_milli),
        memory_bytes=max(1, pod.memory_mib) * MIB,
        gpus=0 if share else pod.gpus,
        gpu_milli=pod.gpu_milli if share else 0,
    )
    return job("pod", QUEUE, [(1, asked, pod.models)], seconds)
