"""Settings of the notifier."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class NotifierSettings(ServiceSettings):
    service: ClassVar[str] = "notifier"

    nice: int = Field(5, ge=0, le=19, description="No start of a pod waits on it")
    keys_dir: Path | None = Field(None, description="A file TENANT.SECRET each; a second line is the one before")
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="Networks that are not public and that webhooks may reach all the same, such as 10.2.0.0/16",
    )
    allow_http: bool = Field(False, description="Webhooks may have http:// URLs, which anybody on the way can read")
    deliver_seconds: float = Field(10.0, gt=0, le=60, description="How long a receiver may take to answer")
    at_once: int = Field(8, ge=1, le=256, description="Requests to one webhook at the same time")
    config_seconds: float = Field(2.0, gt=0, le=600, description="How old the known configuration may be")
    retry_seconds: tuple[float, ...] = Field(
        (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0),
        min_length=1,
        max_length=32,
        description="After the first, second, … failed delivery; after the last one the event is a dead letter",
    )
