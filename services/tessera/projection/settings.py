"""Settings of projection."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings
from tessera.projection.recently_ended import ENDED_MAX, ENDED_SECONDS


class ProjectionSettings(ServiceSettings):
    service: ClassVar[str] = "projection"

    nice: int = Field(2, ge=0, le=19, description="Views and events may lag while CPU is short, by seconds")
    snapshot_seconds: float = Field(
        30.0, ge=0, le=86_400, description="At least so long between two snapshots; a restart folds what came since"
    )
    view_changes_max: int = Field(
        20_000, ge=1, le=100_000, description="More changed fields than this: Redis is built anew, not in one script"
    )
    ended_jobs_max: int = Field(
        ENDED_MAX,
        ge=0,
        le=10_000_000,
        description="So many ended jobs are in Redis and in lists, the last ones; some 340 bytes of Redis each",
    )
    ended_jobs_seconds: int = Field(
        ENDED_SECONDS, ge=0, le=366 * 86_400, description="Ended jobs leave Redis and lists after so long at the latest"
    )
    redis_check_seconds: float = Field(
        5.0, gt=0, le=300, description="How soon a Redis that lost its last writes is noticed while nothing happens"
    )
    events_waiting_max: int = Field(
        65_536, ge=1, le=1_000_000, description="So many events wait in memory for the bus; then folding waits too"
    )
