"""
Signatures of deliveries, by the Standard Webhooks specification (version 1).

Signed is `ID.TIMESTAMP.BODY` with HMAC-SHA256. A file may hold two secrets while one replaces the other: then each
delivery has a signature of both. Source: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from tessera.kernel.errors import Transient

PREFIX = "whsec_"
SECRETS_MAX = 2
BYTES_MIN = 16


def headers(secrets: Sequence[bytes], event_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Headers of a delivery made at `seconds` since the Unix epoch."""
    signed = f"{event_id}.{seconds}.".encode() + body
    digests = [hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets]
    signatures = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {"webhook-id": event_id, "webhook-timestamp": str(seconds), "webhook-signature": signatures}


def read_secrets(directory: Path | None, tenant: str, name: str) -> list[bytes]:
    """Secrets of a webhook, the newest first. Raises Transient, which never shows any of them, where there is none."""
    if directory is None:
        raise Transient("no secret: the notifier's setting keys_dir is empty")
    return read_secret_file(directory / f"{tenant}.{name}")


def read_secret_file(path: Path) -> list[bytes]:
    """As `read_secrets`, of one file."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise Transient(f"no secret: {path} cannot be read") from error
    found = [_decoded(line) for line in lines[:SECRETS_MAX]]
    if not found or any(len(secret) < BYTES_MIN for secret in found):
        raise Transient(f"no secret: {path} needs a line of at least {BYTES_MIN} bytes")
    return found


def _decoded(line: str) -> bytes:
    if not line.startswith(PREFIX):
        return line.encode()
    try:
        return base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return b""
