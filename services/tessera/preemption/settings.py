"""Settings of preemption."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class PreemptionSettings(ServiceSettings):
    service: ClassVar[str] = "preemption"

    nice: int = Field(5, ge=0, le=19, description="CPU niceness; placement in free room goes before making room")
    heads: int = Field(32, ge=1, le=512, description="Number of jobs at the front of each pool to plan for")
