"""Settings of the scheduler."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    service: ClassVar[str] = "scheduler"

    facts_per_message: int = Field(256, ge=1, le=1024, description="Bounds the size of a ledger message")
    checkpoint_every: int = Field(1024, ge=1, description="Ledger messages between checkpoints of the state hash")
    checkpoint_records: int = Field(25_000, ge=1, description="So many records since the last one: another, too")
    checkpoint_bytes: int = Field(4 << 20, ge=1, description="So many bytes as well; a restart folds about as much")
    tick_seconds: float = Field(1.0, gt=0, le=10, description="How late a deadline may be noticed when nothing happens")
    busy_facts: int = Field(
        4, ge=1, le=1024, description="A message of so many facts is busy; after any other the next goes at once"
    )
    share_seconds: float = Field(
        0.01, ge=0, le=0.5, description="How long the next message waits for company after a busy one"
    )
    slots_seconds: float = Field(15.0, ge=0.1, le=3600, description="How often what is left of the pools is measured")
