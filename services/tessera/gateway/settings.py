"""Settings of the gateway, and when it refuses to listen."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from tessera.kernel.errors import StartupError
from tessera.kernel.process.settings import ServiceSettings
from tessera.kernel.service.health import is_loopback


class GatewaySettings(ServiceSettings):
    service: ClassVar[str] = "gateway"

    nice: int = Field(5, ge=0, le=19, description="Whoever waits for it waits for the others first")
    api_host: str = Field("127.0.0.1", description="Where the API listens; loopback unless told")
    api_port: int = Field(8480, ge=0, le=65_535, description="0 takes a free port")
    api_port_file: Path | None = Field(None, description="Gets the API's port, for whoever started us with port 0")
    tokens_file: Path | None = Field(None, description="Hashes of the tokens, as `tessera token new` writes them")
    allowed_hosts: tuple[str, ...] = Field((), description="Names by which clients reach us, besides loopback's")
    allowed_origins: tuple[str, ...] = Field((), description="Origins of web pages that may call us, besides our own")
    public_url: str = Field(
        "", description="Where clients reach us, told to tenants that log in by NATS; empty: made of allowed_hosts"
    )
    tls_certificate_file: Path | None = Field(None, description="Certificate chain in PEM, for HTTPS")
    tls_key_file: Path | None = Field(None, description="Its private key")
    plaintext_ok: bool = Field(False, description="Off loopback without TLS: something before us speaks it")

    body_bytes_max: int = Field(376 * 1024, ge=1024, le=383 * 1024, description="A command of it must fit on SUBMIT")
    body_seconds: float = Field(10.0, gt=0, le=300, description="How long a client may take to send a body")
    head_seconds: float = Field(
        30.0, gt=0, le=3600, description="How long a connection may be open without a whole request head"
    )
    connections_max: int = Field(4096, ge=1, le=60_000, description="Of everybody, and no more than the process can")
    connections_per_address: int = Field(
        512, ge=1, le=60_000, description="Behind a proxy all come from its address: raise it to connections_max"
    )
    requests_per_second: int = Field(50, ge=1, le=100_000, description="Per token, on average")
    requests_burst: int = Field(100, ge=1, le=100_000, description="Per token, at once")
    publish_seconds: float = Field(2.0, gt=0, le=60, description="To store a command, before the client is told 503")
    answer_seconds: float = Field(10.0, gt=0, le=60, description="To hear what became of it, before a 202")
    views_seconds: float = Field(2.0, gt=0, le=60, description="To read Redis, before a 503")
    views_age_seconds: float = Field(0.25, ge=0, le=60, description="How old a list may be; it says as of which n")
    streams_max: int = Field(1000, ge=1, le=100_000, description="Open event streams of everybody")
    streams_per_token: int = Field(16, ge=1, le=10_000, description="Open event streams of one token")
    events_held: int = Field(4096, ge=16, le=1_000_000, description="Newest events in memory, shared by all streams")
    heartbeat_seconds: float = Field(15.0, gt=0, le=300, description="A quiet stream gets a line this often")
    slow_seconds: float = Field(10.0, gt=0, le=300, description="A client that takes nothing for so long is dropped")

    logs_store: str = Field(
        "", description="A directory or s3://BUCKET/PREFIX for the logs of pods that are gone; empty keeps none"
    )
    logs_store_options: dict[str, str] = Field(
        {}, description="Options of an object store, such as endpoint and region; secrets come from AWS_* or the pod"
    )
    logs_job_bytes_max: int = Field(
        16 << 20, ge=1 << 16, le=1 << 30, description="Of all attempts of a job together; one run takes half at most"
    )
    logs_days: int = Field(7, ge=1, le=3650, description="A stored log is removed after so long")


def check_exposure(settings: GatewaySettings, tokens: int) -> None:
    """
    Off loopback there is no way in without a token, and no token goes over the wire in the clear unless told.

    Raises StartupError.
    """
    if (settings.tls_certificate_file is None) != (settings.tls_key_file is None):
        raise StartupError("gateway: TLS needs both; set tls_certificate_file and tls_key_file")
    if is_loopback(settings.api_host):
        return
    where = f"gateway: would listen on {settings.api_host}, which is not loopback,"
    if not tokens:
        raise StartupError(
            f"{where} and nobody has a token; `tessera token new TENANT` makes one, tokens_file names it"
        )
    if not settings.allowed_hosts:
        raise StartupError(f"{where} and would answer to no name; set allowed_hosts to the names that clients use")
    if settings.tls_certificate_file is None and not settings.plaintext_ok:
        raise StartupError(f"{where} without TLS; set tls_certificate_file, or plaintext_ok behind a proxy that has it")
