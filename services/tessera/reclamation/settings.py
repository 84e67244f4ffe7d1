"""Settings of reclamation."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.settings import ServiceSettings


class ReclamationSettings(ServiceSettings):
    service: ClassVar[str] = "reclamation"

    recheck_seconds: float = Field(
        1.0, gt=0, le=60, description="How often runs that are not absent yet are looked at again"
    )
    lists_at_once: int = Field(8, ge=1, le=64, description="Lists of the API server in flight")
