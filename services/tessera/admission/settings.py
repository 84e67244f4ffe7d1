"""Settings of admission."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class AdmissionSettings(ServiceSettings):
    service: ClassVar[str] = "admission"

    refusals_per_second: int = Field(
        20, ge=1, le=1000, description="Refusals recorded one by one per tenant; one record counts the rest"
    )
    policy_seconds: float = Field(0.5, gt=0, le=60, description="Maximum age of tenant policy and node shapes")
