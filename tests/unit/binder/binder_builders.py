"""Jobs, runs and pods as the binder meets them."""

from typing import Any

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node, role_need
from tessera.domain.entities import Job, Run
from tessera.domain.work.gang import gang_of
from tessera_schemas.base import Json, job_id, run_id
from tessera_schemas.cluster.labels import BOOT_ANNOTATION, FINALIZER, RUN_LABEL, pod_name
from tessera_schemas.job import JobSpec
from tests.builders import SHARD, job_spec, node_seen, placement

JOB = job_id(SHARD, "lab", "k1")
RUN = run_id(JOB, 1)


def job(spec: JobSpec | None = None) -> Job:
    spec = spec or job_spec()
    roles = tuple(role_need(role) for role in spec.roles)
    return Job(
        JOB,
        "lab",
        spec.queue,
        spec.name,
        "k1",
        spec.digest(),
        spec.priority_class,
        spec.preemptible,
        roles,
        gang_of(roles).amount,
        spec.retry,
        taken_n=1,
        fact_index=0,
        submitted_ts=0,
        attempt=1,
    )


def run(spec: JobSpec | None = None, pods: int = 0, **more: Any) -> Run:
    """A run with one placement per pod of the spec, permitted pods named uid-0 and so on when `pods` says so."""
    of = job(spec)
    names = [role.name for role in of.roles for _ in range(role.replicas)]
    places = more.pop("places", None) or tuple(
        placement(rank, devices=(rank,), role=name) for rank, name in enumerate(names)
    )
    uids = tuple(f"uid-{rank}" for rank in range(pods))
    return Run(RUN, JOB, 1, "lab", of.queue, of.roles, of.amount, places, 0, 0, uids=uids, **more)


def node(profile: str = "plugin", gpus: int = 8, **more: Any) -> Node:
    """The node of the placements, as the ledger has it."""
    return empty_node(node_seen("node-a", gpus, device_profile=profile, **more))


def api_pod(rank: int = 0, phase: str = "Running", node: str = "node-a", **more: Any) -> Json:
    """
    The object as the API gives it; `exit_code`, `why` and `finished` are its container's, `reason` and `message` the
    pod's own; `deleting` may be the time of its deletion, `disrupted` the reason of its condition `DisruptionTarget`,
    `boot` the boot that it was bound to.
    """
    meta: Json = {
        "name": pod_name(RUN, rank),
        "namespace": "lab",
        "uid": more.pop("uid", f"uid-{rank}"),
        "labels": more.pop("labels", {RUN_LABEL: RUN}),
        "finalizers": [FINALIZER],
    }
    deleting = more.pop("deleting", False)
    if deleting:
        meta["deletionTimestamp"] = deleting if isinstance(deleting, str) else "2026-01-01T00:00:00Z"
    if "boot" in more:
        meta["annotations"] = {BOOT_ANNOTATION: more.pop("boot")}
    status: Json = {"phase": phase} | {name: more.pop(name) for name in ("reason", "message") if name in more}
    if "disrupted" in more:
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": more.pop("disrupted")}]
    if "exit_code" in more:
        ended = {"exitCode": more.pop("exit_code"), "reason": more.pop("why", "Error")}
        ended |= {"finishedAt": more.pop("finished")} if "finished" in more else {}
        status["containerStatuses"] = [{"state": {"terminated": ended}}]
    assert not more
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status}
