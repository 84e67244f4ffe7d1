"""Labels, annotations and names on Kubernetes objects; part of the contract, since other programs read them."""

from collections.abc import Mapping
from typing import Any

from tessera_schemas.subjects import MAIN_SHARD

SCHEDULER_NAME = "tessera"
FINALIZER = "tessera.io/held"

CLAIMS_API = "resource.k8s.io/v1"
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own finalizer on claims of devices that may be in use."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
JOB_LABEL = "tessera.io/job"
RUN_LABEL = "tessera.io/run"
RANK_LABEL = "tessera.io/rank"
ROLE_LABEL = "tessera.io/role"
QUEUE_LABEL = "tessera.io/queue"
PROJECT_LABEL = "tessera.io/project"
SESSION_LABEL = "tessera.io/session"
"""On users' own pods and their owners: the project for which their use is counted."""
TENANT_LABEL = "tessera.io/tenant"
SPEC_LABEL = "tessera.io/spec"
SHARD_LABEL = "tessera.io/shard"
"""On pods and nodes: whose they are. A node without it is the main shard's; a pod without it is nobody's."""

LEDGER_LABEL = "tessera.io/ledger"
"""On pods and Services that a binder made: the identity of its ledger. Another ledger's are told and never touched."""

NAME_ANNOTATION = "tessera.io/job-name"
ALLOCATED_N_ANNOTATION = "tessera.io/allocated-n"
TTL_ANNOTATION = "tessera.io/ttl-seconds-after-finished"
PERMIT_ANNOTATION = "tessera.io/permit"
BOOT_ANNOTATION = "tessera.io/boot-id"
"""Boot of the machine that the pod was bound to: another one later tells that it restarted under the pod."""
DEVICES_ANNOTATION = "tessera.io/devices"
GPU_MILLI_ANNOTATION = "tessera.io/gpu-milli"

GANG_LABEL = "tessera.io/gang"
GANG_SIZE_ANNOTATION = "tessera.io/gang-size"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
PREEMPTIBLE_ANNOTATION = "tessera.io/preemptible"
MIN_REPLICAS_ANNOTATION = "tessera.io/min-replicas"
"""Users' own, on what makes replicas or in its pod template: so many of them no plan stops."""
ALLOW_IDLE_ANNOTATION = "tessera.io/allow-idle"
GPU_MEMORY_ANNOTATION = "tessera.io/gpu-memory"
RELEASE_ANNOTATION = "tessera.io/release"
MIXED_MODELS_ANNOTATION = "tessera.io/mixed-models"
EXCLUSIVE_ANNOTATION = "tessera.io/exclusive"
FOUND_BY_ANNOTATION = "tessera.io/found-by"
GPU_MODELS_ANNOTATION = "tessera.io/gpu-models"
ISOLATION_ANNOTATION = "tessera.io/isolation"
GPU_RESOURCE_ANNOTATION = "tessera.io/gpu-resource"
"""Names a resource that the pod asks for as one of GPUs."""
"""On users' own pods, which name our scheduler; GPU_MILLI_ANNOTATION there asks for a share of one GPU."""

RUN_ANNOTATION, RANK_ANNOTATION = RUN_LABEL, RANK_LABEL
GIVEN_BACK_ANNOTATION = "tessera.io/given-back"
SUSPENDED_ANNOTATION = "tessera.io/suspended"
"""
Written by the binder on users' own pods: run and rank as the pod is bound; or up to when, by ledger time in
milliseconds, runs were allocated that have let go of the pod before it was bound. On their owners: whether we suspended
it ("true"), or have resumed it since ("false").
"""
SUSPEND_WAITING_ANNOTATION = "tessera.io/suspend-waiting"
"""Users' own, on an owner: whether it is suspended for as long as its job waits ("true", "false")."""

NOTICE_ANNOTATION = "tessera.io/checkpoint-notice-seconds"
EVICT_AT_ANNOTATION = "tessera.io/evict-at"
"""Written by the binder: the pod is to be stopped, and is deleted at this time (RFC 3339) at the latest."""
CHECKPOINT_ANNOTATION = "tessera.io/checkpoint"
"""Written by the program or whoever looks after it: its work up to now is saved, and here."""
CHECKPOINT_AT_ANNOTATION = "tessera.io/checkpoint-at"
"""Beside it, for programs that save in the same place again: anything that changes each time, such as the time."""

PROGRESS_ANNOTATION = "tessera.io/progress"
"""Written as `tessera.io/checkpoint` is: the number of the last step that the pod's program has done."""

DATASETS_ANNOTATION = "tessera.io/datasets"
"""
On a node: the data sets that it has, `NAME` or `TENANT/NAME`, with commas between. Users' own, on their pods: those
that they read, `NAME=SIZE` each.
"""
FLUID_CACHE_PREFIX = "fluid.io/s-"
"""Of labels of the nodes on which Fluid keeps a data set, Alluxio's among them: with `NAMESPACE-DATASET` behind."""

POOL_LABEL = "tessera.io/pool"
GPU_MODEL_LABEL = "tessera.io/gpu-model"
DEVICE_PROFILE_ANNOTATION = "tessera.io/device-profile"
GPU_UUIDS_ANNOTATION = "tessera.io/gpu-uuids"
"""On a node of profile `visible-devices`: the UUIDs of its GPUs by slot, with commas between."""
MIG_GEOMETRY_LABEL = "tessera.io/mig-geometry"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
GPU_REPLICAS_LABEL = "nvidia.com/gpu.replicas"
GPU_SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
MPS_CAPABLE_LABEL = "nvidia.com/mps.capable"
MIG_STRATEGY_LABEL = "nvidia.com/mig.strategy"
"""
As GPU feature discovery says it: the model, MiB of each GPU, how many, how often each is offered, what keeps those who
share one apart (`none`, `time-slicing`, `mps`), whether MPS is on, and how instances are offered.
"""
GKE_CLIENTS_LABEL = "cloud.google.com/gke-max-shared-clients-per-gpu"
GKE_PARTITION_LABEL = "cloud.google.com/gke-gpu-partition-size"
"""As GKE says it: how often each GPU is offered, and the MIG profile of the instances that it offers as GPUs."""
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
"""The geometry that somebody wants for the node's GPUs, by its name in the mig-manager's configuration."""
MIG_CONFIG_STATE_LABEL = "nvidia.com/mig.config.state"
"""Progress of NVIDIA's mig-manager with that geometry: pending, rebooting, success or failed."""
FENCE_ANNOTATION = "tessera.io/fence"
"""On nodes: the request for which the binder put the node out of service, and the boot that it ended."""
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
"""Kubernetes' own word for a node that is off for certain: with it a node that is not ready counts as fenced."""

DIGITS_MAX = 15  # of a number on an object that is believed
RESERVED_PREFIX = "tessera.io/"
SIMULATE_PREFIX = "tessera.io/simulate-"


BOUND_AND_NOT_ENDED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of the pods that take something of a node."""


def pods_of_shard(shard: str) -> str:
    """The label selector of the pods that a shard made: it watches and judges no other shard's."""
    return f"{RUN_LABEL},{SHARD_LABEL}={shard}"


def shard_of(thing: Mapping[str, Any]) -> str:
    """The shard that a node, a user's pod or a pod template is of, by its label; the main one without it."""
    labels = (thing.get("metadata") or {}).get("labels")
    return str((labels.get(SHARD_LABEL) if isinstance(labels, Mapping) else "") or MAIN_SHARD)


def ledger_of(thing: Mapping[str, Any]) -> str:
    """Identity of the ledger that made an object; "" on those of versions that did not say it, and of users."""
    return str((thing["metadata"].get("labels") or {}).get(LEDGER_LABEL, ""))


def is_of_another(named: str, ledger_id: str) -> bool:
    """Whether an object on which `named` is written was made by another ledger than `ledger_id`."""
    return named not in ("", ledger_id)


USERS_PODS = f"{MANAGED_BY_LABEL}!={SCHEDULER_NAME}"
NAMES_US = f"spec.schedulerName={SCHEDULER_NAME}"
"""The label and field selectors of pods that users made for our scheduler."""
NAMES_ANOTHER = f"spec.schedulerName!={SCHEDULER_NAME}"


def bound_for(pod: Mapping[str, Any]) -> str:
    """The run for which we bound a user's pod; "" for none. What was copied from another pod has that one's permit."""
    meta = pod["metadata"]
    notes = meta.get("annotations") or {}
    ours = notes.get(PERMIT_ANNOTATION) == meta["uid"] and (pod.get("spec") or {}).get("nodeName")
    return str(notes.get(RUN_ANNOTATION, "")) if ours else ""


def run_and_rank(pod: Mapping[str, Any]) -> tuple[str, str]:
    """
    Run and rank that the pod says: one of ours from the start, a user's once it is bound; "" where it says nothing.
    """
    said = pod["metadata"].get("annotations" if bound_for(pod) else "labels") or {}
    return str(said.get(RUN_LABEL, "")), str(said.get(RANK_LABEL, ""))


def given_back_ms(pod: Mapping[str, Any]) -> int:
    """Runs that were allocated up to then have let go of a user's pod; 0 when there was none."""
    said = str((pod["metadata"].get("annotations") or {}).get(GIVEN_BACK_ANNOTATION, ""))
    return int(said) if said.isascii() and said.isdecimal() and len(said) <= DIGITS_MAX else 0


def is_given_back(pod: Mapping[str, Any], allocated_ms: int) -> bool:
    """Whether a run that was allocated then has let go of the pod, or one since."""
    return 0 < given_back_ms(pod) >= allocated_ms


ENDED_PHASES = ("Succeeded", "Failed")
"""The phases that no pod leaves."""


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether its kubelet, or Kubernetes in its place, reported its end; what is being deleted may still run."""
    return (pod.get("status") or {}).get("phase") in ENDED_PHASES


def has_succeeded(pod: Mapping[str, Any]) -> bool:
    """Whether its kubelet reported that every container has ended with exit code 0."""
    return bool((pod.get("status") or {}).get("phase") == "Succeeded")


def pod_name(run_id: str, rank: int) -> str:
    """Deterministic, so that a repeated create finds what is there; at most 40 characters."""
    return f"{run_id}-{rank}"


def say_it_is_off(node: str) -> str:
    """Command by which an operator says that nothing runs on a node any more, so that its runs may start elsewhere."""
    return f"kubectl taint nodes {node} {OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute"


DOMAINS = (
    "node.kubernetes.io",
    "node.cloudprovider.kubernetes.io",
    "readiness.k8s.io",
    "startup-taint.cluster-autoscaler.kubernetes.io",
    "status-taint.cluster-autoscaler.kubernetes.io",
    "karpenter.sh",
)
KEYS = frozenset(["ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"])
ENDS = ("not-ready", "unready", "uninitialized", "unreachable", "-pressure")
"""As of agents that a node starts with: `node.cilium.io/agent-not-ready`, `ebs.csi.aws.com/agent-not-ready`."""


def tells_condition(key: str) -> bool:
    """Whether a taint of this key tells a passing condition."""
    domain, slash, _ = key.partition("/")
    return key in KEYS or key.endswith(ENDS) or (bool(slash) and domain in DOMAINS)
