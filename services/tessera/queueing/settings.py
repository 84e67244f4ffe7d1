"""Settings of queueing."""

from typing import ClassVar

from tessera.kernel.process.settings import ServiceSettings


class QueueingSettings(ServiceSettings):
    service: ClassVar[str] = "queueing"
