"""
The call that turns a machine off: one signed POST, whose answer says how far that is.

It may be sent any number of times; what it does is done once for each key, by the webhook's own memory of keys.
"""

from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import orjson

from tessera.kernel.errors import Transient
from tessera.kernel.messaging.signing import headers, read_secret_file
from tessera.kernel.ports import Clock
from tessera.reclamation.settings import ReclamationSettings

ANSWER_BYTES_MAX = 64 * 1024
DETAIL_MAX = 500


@dataclass(frozen=True, slots=True)
class PowerAnswer:
    """`state` is off, failed, or anything else for a machine that is not off yet; `detail` is the webhook's word."""

    state: str
    detail: str = ""


class PowerSwitch(Protocol):
    """Switch that turns machines off. Raises Transient while it cannot be reached, or answers nothing that counts."""

    async def turn_off(self, url: str, key: str, body: dict[str, Any]) -> PowerAnswer: ...


class PowerWebhook:
    """The switch at a URL. Nothing is sent unsigned, and no redirect is followed."""

    def __init__(self, settings: ReclamationSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._session: aiohttp.ClientSession | None = None

    async def turn_off(self, url: str, key: str, body: dict[str, Any]) -> PowerAnswer:
        """Answer of the webhook. A machine counts as off only by 2xx with `{"state": "off"}`."""
        if urlsplit(url).scheme != "https" and not self._settings.fencing_allow_http:
            raise Transient("plain http is not allowed: its answer frees GPUs; use https, or set fencing_allow_http")
        if self._settings.fencing_secret is None:
            raise Transient("no secret: reclamation's setting fencing_secret is empty")
        sent = orjson.dumps(body)
        signed = headers(read_secret_file(self._settings.fencing_secret), key, self._clock.now_ms() // 1000, sent)
        more = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            async with self._open().post(url, data=sent, headers=signed | more, allow_redirects=False) as answer:
                # A word on the answer's end would be cut off: what is longer than this is no answer.
                text = await answer.content.read(ANSWER_BYTES_MAX)
                return _read(answer.status, text)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Transient(type(error).__name__) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._settings.fencing_call_seconds)
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), headers={"User-Agent": "tessera-reclamation"}
            )
        return self._session

    async def close(self) -> None:
        """Closes the session, if one is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _read(status: int, text: bytes) -> PowerAnswer:
    try:
        body = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        body = {}
    said = body if isinstance(body, dict) else {}
    state, detail = said.get("state", ""), said.get("detail", "")
    detail = " ".join(detail.split())[:DETAIL_MAX] if isinstance(detail, str) else ""
    if 200 <= status < 300:
        return PowerAnswer(state if isinstance(state, str) else "", detail)
    if state == "failed":
        return PowerAnswer("failed", detail or f"HTTP {status}")
    raise Transient(f"HTTP {status}{f': {detail}' if detail else ''}")
