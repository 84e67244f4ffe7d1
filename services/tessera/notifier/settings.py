"""Settings of the notifier."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class NotifierSettings(ServiceSettings):
    service: ClassVar[str] = "notifier"

    nice: int = Field(5, ge=0, le=19, description="CPU niceness; no start of a pod waits for deliveries")
    keys_dir: Path | None = Field(
        None, description="Directory with one file TENANT.SECRET per secret; a second line holds the previous secret"
    )
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="Private networks that webhooks may reach, such as 10.2.0.0/16",
    )
    allow_http: bool = Field(
        False, description="Permit http:// URLs of webhooks, whose events anybody on the way can read"
    )
    deliver_seconds: float = Field(10.0, gt=0, le=60, description="Time for a receiver to answer")
    at_once: int = Field(8, ge=1, le=256, description="Concurrent requests to one webhook")
    connections_per_tenant: int = Field(
        32,
        ge=1,
        le=4096,
        description="Concurrent requests to all webhooks of a tenant: slow ones delay its own alone",
    )
    config_seconds: float = Field(2.0, gt=0, le=600, description="Maximum age of the known configuration")
    retry_seconds: tuple[float, ...] = Field(
        (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0),
        min_length=1,
        max_length=32,
        description="Pauses after the first, second, … failed delivery; after the last one the event is a dead letter",
    )
