"""Settings of the gateway, and when it refuses to listen."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, IPvAnyNetwork

from tessera.kernel.errors import StartupError
from tessera.kernel.process.settings import ServiceSettings
from tessera.kernel.service.health import is_loopback


class GatewaySettings(ServiceSettings):
    service: ClassVar[str] = "gateway"

    nice: int = Field(
        5, ge=0, le=19, description="CPU niceness; clients of the gateway also wait for the services behind"
    )
    api_host: str = Field("127.0.0.1", description="Address on which the API listens; loopback by default")
    api_port: int = Field(8480, ge=0, le=65_535, description="Port of the API; 0 takes a free one")
    api_port_file: Path | None = Field(
        None, description="File to write the API's port to, for a parent that passes port 0"
    )
    tokens_file: Path | None = Field(None, description="Hashes of the tokens, as `tessera token new` writes them")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names by which clients reach the gateway, besides loopback's"
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="Origins of web pages that may call the gateway, besides its own"
    )
    public_url: str = Field(
        "", description="Address of the gateway, given to tenants that log in by NATS; empty: made of allowed_hosts"
    )
    tls_certificate_file: Path | None = Field(None, description="Certificate chain in PEM, for HTTPS")
    tls_key_file: Path | None = Field(None, description="Private key of the certificate")
    plaintext_ok: bool = Field(
        False, description="Permit no TLS off loopback: a proxy in front of the gateway terminates it"
    )

    body_bytes_max: int = Field(
        376 * 1024, ge=1024, le=383 * 1024, description="Largest request body in bytes; a command has to fit on SUBMIT"
    )
    body_seconds: float = Field(10.0, gt=0, le=300, description="Time for a client to send a body")
    head_seconds: float = Field(30.0, gt=0, le=3600, description="Time for a client to send a whole request head")
    connections_max: int = Field(
        4096, ge=1, le=60_000, description="Open connections of all clients; the limit of the process may be lower"
    )
    connections_per_address: int = Field(
        512,
        ge=1,
        le=60_000,
        description="Open connections per address (IPv6: per /64); behind trusted_proxies, open requests",
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (), description="Networks of proxies in front of the gateway, whose X-Forwarded-For says whose a request is"
    )
    requests_per_second: int = Field(50, ge=1, le=100_000, description="Average requests per token")
    requests_burst: int = Field(100, ge=1, le=100_000, description="Requests per token at once")
    loop_ms_per_second: int = Field(
        200, ge=1, le=1000, description="Time of the one loop that a tenant's requests may take, of each second"
    )
    loop_ms_burst: int = Field(1000, ge=1, le=60_000, description="Time of the loop that they may take at once")
    publish_seconds: float = Field(2.0, gt=0, le=60, description="Time to store a command before the client gets 503")
    answer_seconds: float = Field(
        10.0, gt=0, le=60, description="Time to wait for the answer to a command before the client gets 202"
    )
    views_seconds: float = Field(2.0, gt=0, le=60, description="Time to read Redis before the client gets 503")
    views_age_seconds: float = Field(
        0.25, ge=0, le=60, description="Maximum age of a listing; each listing carries its ledger number"
    )
    streams_max: int = Field(1000, ge=1, le=100_000, description="Open event streams of all clients")
    streams_per_token: int = Field(16, ge=1, le=10_000, description="Open event streams of one token")
    events_held: int = Field(4096, ge=16, le=1_000_000, description="Newest events in memory, shared by all streams")
    heartbeat_seconds: float = Field(15.0, gt=0, le=300, description="Interval of heartbeat lines on a quiet stream")
    slow_seconds: float = Field(10.0, gt=0, le=300, description="Time without reading after which a client is dropped")

    logs_store: str = Field(
        "", description="Directory or s3://BUCKET/PREFIX for the logs of pods that are gone; empty: none are kept"
    )
    logs_store_options: dict[str, str] = Field(
        {}, description="Options of an object store, such as endpoint and region; secrets come from AWS_* or the pod"
    )
    logs_job_bytes_max: int = Field(
        16 << 20,
        ge=1 << 16,
        le=1 << 30,
        description="Stored log bytes per job over all attempts; one run takes half at most",
    )
    logs_bytes_max: int = Field(
        4 << 30,
        ge=1 << 20,
        le=1 << 50,
        description="Stored log bytes of a shard; each tenant has an equal share, of which its oldest logs go first",
    )
    logs_days: int = Field(7, ge=1, le=3650, description="Days until a stored log is removed")


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
            f"{where} and no token exists; make one with `tessera token new TENANT`, and name its file in tokens_file"
        )
    if not settings.allowed_hosts:
        raise StartupError(f"{where} and would answer to no name; set allowed_hosts to the names that clients use")
    if settings.tls_certificate_file is None and not settings.plaintext_ok:
        raise StartupError(f"{where} without TLS; set tls_certificate_file, or plaintext_ok behind a proxy that has it")
