"""Settings of the scheduler."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    service: ClassVar[str] = "scheduler"

    facts_per_message: int = Field(
        256, ge=1, le=1024, description="Most facts per ledger message, which bounds the message's size"
    )
    checkpoint_every: int = Field(1024, ge=1, description="Ledger messages between checkpoints of the state hash")
    checkpoint_records: int = Field(
        25_000, ge=1, description="Number of records after which a further checkpoint is made"
    )
    checkpoint_bytes: int = Field(
        4 << 20,
        ge=1,
        description="Number of bytes after which a further checkpoint is made; a restart folds about as much",
    )
    tick_seconds: float = Field(
        1.0, gt=0, le=10, description="Longest delay until a deadline is noticed while nothing happens"
    )
    busy_facts: int = Field(
        4,
        ge=1,
        le=1024,
        description="Number of facts from which a message counts as busy; after other messages the next goes at once",
    )
    share_seconds: float = Field(
        0.01, ge=0, le=0.5, description="Least time for which the next message collects facts after a busy one"
    )
    slots_seconds: float = Field(15.0, ge=0.1, le=3600, description="Interval of measurements of the pools' free slots")
