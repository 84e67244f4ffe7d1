"""Settings of preemption."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class PreemptionSettings(ServiceSettings):
    service: ClassVar[str] = "preemption"

    nice: int = Field(5, ge=0, le=19, description="First what finds room, then what makes some")
    heads: int = Field(32, ge=1, le=512, description="How many jobs at the front of each pool it plans for")
