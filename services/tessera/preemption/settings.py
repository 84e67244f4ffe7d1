"""Settings of preemption."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.settings import ServiceSettings


class PreemptionSettings(ServiceSettings):
    service: ClassVar[str] = "preemption"

    heads: int = Field(32, ge=1, le=512, description="How many jobs at the front of each pool it plans for")
