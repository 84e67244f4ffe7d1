"""Labels, annotations and names on Kubernetes objects; part of the contract, since other programs read them."""

SCHEDULER_NAME = "tessera"
FINALIZER = "tessera.io/held"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
JOB_LABEL = "tessera.io/job"
RUN_LABEL = "tessera.io/run"
RANK_LABEL = "tessera.io/rank"
ROLE_LABEL = "tessera.io/role"
QUEUE_LABEL = "tessera.io/queue"
TENANT_LABEL = "tessera.io/tenant"
SPEC_LABEL = "tessera.io/spec"
SHARD_LABEL = "tessera.io/shard"
"""On pods and nodes: whose they are. A node without it is the main shard's; a pod without it is nobody's."""

NAME_ANNOTATION = "tessera.io/job-name"
ALLOCATED_N_ANNOTATION = "tessera.io/allocated-n"
TTL_ANNOTATION = "tessera.io/ttl-seconds-after-finished"
PERMIT_ANNOTATION = "tessera.io/permit"
DEVICES_ANNOTATION = "tessera.io/devices"
GPU_MILLI_ANNOTATION = "tessera.io/gpu-milli"

GANG_LABEL = "tessera.io/gang"
GANG_SIZE_ANNOTATION = "tessera.io/gang-size"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
PREEMPTIBLE_ANNOTATION = "tessera.io/preemptible"
GPU_MEMORY_ANNOTATION = "tessera.io/gpu-memory"
"""On users' own pods, which name our scheduler; GPU_MILLI_ANNOTATION there asks for a share of one GPU."""

NOTICE_ANNOTATION = "tessera.io/checkpoint-notice-seconds"
EVICT_AT_ANNOTATION = "tessera.io/evict-at"
"""Written by the binder: the pod is to be stopped, and is deleted at this time (RFC 3339) at the latest."""
CHECKPOINT_ANNOTATION = "tessera.io/checkpoint"
"""Written by the program or whoever looks after it: its work up to now is saved, and here."""
CHECKPOINT_AT_ANNOTATION = "tessera.io/checkpoint-at"
"""Beside it, for programs that save in the same place again: anything that changes each time, such as the time."""

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
MIG_STRATEGY_LABEL = "nvidia.com/mig.strategy"
"""As GPU feature discovery says it: the model, MiB of each GPU, how many, how often each is offered, and as what."""
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
"""Kubernetes' own word for a node that is off for certain: with it a node that is not ready counts as fenced."""

RESERVED_PREFIX = "tessera.io/"
SIMULATE_PREFIX = "tessera.io/simulate-"


BOUND_AND_NOT_ENDED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of the pods that take something of a node."""


def pods_of_shard(shard: str) -> str:
    """The label selector of the pods that a shard made: it watches and judges no other shard's."""
    return f"{RUN_LABEL},{SHARD_LABEL}={shard}"


def pods_of_others(shard: str) -> str:
    return f"{RUN_LABEL},{SHARD_LABEL}!={shard}"


def pod_name(run_id: str, rank: int) -> str:
    """Deterministic, so that a repeated create finds what is there; at most 40 characters."""
    return f"{run_id}-{rank}"
