"""Settings of projection."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings
from tessera.projection.recently_ended import ENDED_MAX, ENDED_SECONDS


class ProjectionSettings(ServiceSettings):
    service: ClassVar[str] = "projection"

    nice: int = Field(2, ge=0, le=19, description="CPU niceness; views and events may lag by seconds")
    snapshot_seconds: float = Field(
        30.0, ge=0, le=86_400, description="Least time between two snapshots; a restart folds all later messages"
    )
    view_changes_max: int = Field(
        20_000,
        ge=1,
        le=100_000,
        description="Number of changed fields above which Redis is rebuilt, not changed by one script",
    )
    ended_jobs_max: int = Field(
        ENDED_MAX,
        ge=0,
        le=10_000_000,
        description="Number of newest ended jobs in Redis and listings; about 340 bytes of Redis each",
    )
    ended_jobs_seconds: int = Field(
        ENDED_SECONDS, ge=0, le=366 * 86_400, description="Longest time that ended jobs stay in Redis and listings"
    )
    redis_check_seconds: float = Field(
        5.0, gt=0, le=300, description="Interval of checks, while nothing happens, whether Redis lost its last writes"
    )
    quote_seconds: float = Field(
        10.0,
        ge=0,
        le=3_600,
        description="Least time between two drawings of the quotes of all waiting jobs; 0: no quotes. "
        "A drawing takes up to a second of a core, and they take a twentieth of one at most",
    )
    events_waiting_max: int = Field(
        65_536, ge=1, le=1_000_000, description="Events waiting in memory for the bus, above which folding waits too"
    )
