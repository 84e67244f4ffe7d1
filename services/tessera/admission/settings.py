"""Settings of admission."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class AdmissionSettings(ServiceSettings):
    service: ClassVar[str] = "admission"

    refusals_per_second: int = Field(
        20, ge=1, le=1000, description="Recorded one by one, per tenant; the rest is counted in one record"
    )
    policy_seconds: float = Field(0.5, gt=0, le=60, description="How old tenant policy and node shapes may be")
