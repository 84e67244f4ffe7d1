"""What Redis holds for readers: one JSON value per entity, derived from the ledger by projection."""

from typing import Annotated

from pydantic import Field

from tessera_schemas.base import Lenient
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import PublicReason


class JobView(Lenient):
    """A job as of the cursor; ended jobs stay for as long as their key is remembered."""

    job_id: str
    tenant: str
    queue: str
    name: str
    key: str
    phase: str
    priority: int
    attempt: int
    pods: int
    gpu_milli: int
    submitted_ts: int
    started_ts: int = 0
    ended_ts: int = 0
    not_before: int = 0
    reason: PublicReason | None = None
    exit_code: int | None = None
    placements: tuple[Placement, ...] = ()


class QueueView(Lenient):
    """What a queue holds and what waits in it."""

    name: str
    pool: str
    queued: int = 0
    live: int = 0
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0
    used_gpu_milli: int = 0


class NodeView(Lenient):
    """A node, its size and what is free; `gpu_free` per device slot in thousandths."""

    name: str
    pool: str
    ready: bool
    gone: bool = False
    gpu_model: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    cpu_free_milli: int = 0
    memory_free_bytes: int = 0
    pods_free: int = 0
    gpu_free: tuple[int, ...] = ()
    device_profile: str = "whole"
    labels: dict[str, str] = Field(default_factory=dict)
    taints: Annotated[tuple[tuple[str, str, str], ...], Field(description="key, value, effect")] = ()
