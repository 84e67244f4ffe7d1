"""
Short-lived tokens for tenants and operators that show their NATS credential (ADR 0041, ADR 0047).

The server lets an identity alone write to its login subject, so that the subject says who asks; the answer goes to
that identity's inbox and nowhere else. A token is `tessera_nats.IDENTITY.END_MAC`, by a key that all gateways of a
shard have: none is kept, and one ends by itself, within TOKEN_SECONDS of the moment at which its identity lost its
credential. No tenant is called as the operator is.
"""

import asyncio
import hashlib
import hmac
import json
import re
from collections import deque

import structlog

from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import KernelError
from tessera.kernel.ids import password
from tessera.kernel.ports import Bus, Clock
from tessera.kernel.service.health import is_loopback
from tessera_schemas import subjects

TOKEN_SECONDS = 600
MARK = "nats"
ASKED_MAX = 16
# Questions of one identity that wait for an answer; older ones are dropped, and asked again.
QUESTION = re.compile(rb"[0-9a-f]{32}")

log = structlog.get_logger()


class ShortTokens:
    """Made and judged without a store. `secret` is the same for all gateways of the shard."""

    def __init__(self, secret: str, shard: str, clock: Clock) -> None:
        self._key = hashlib.sha256(f"tokens of {shard} {secret or password()}".encode()).digest()
        self._clock = clock

    def make(self, identity: str) -> str:
        """A token of the identity, for TOKEN_SECONDS from now on."""
        token_id = f"{MARK}.{identity}.{self._clock.now_ms() // 1000 + TOKEN_SECONDS}"
        return f"tessera_{token_id}_{self._mac(token_id)}"

    def caller(self, token_id: str, mac: str) -> Caller | None:
        """The tenant or operator for whom this token was made, if it is one of ours and has not ended."""
        match = re.fullmatch(rf"{MARK}\.({subjects.NAME.pattern})\.([0-9]{{1,12}})", token_id)
        if match is None or not hmac.compare_digest(self._mac(token_id).encode(), mac.encode("utf-8", "replace")):
            return None
        tenant = None if match[1] == subjects.OPERATOR else match[1]
        caller = Caller(f"{MARK}.{match[1]}", tenant, int(match[3]))
        return caller if self.holds(caller) else None

    def holds(self, caller: Caller) -> bool:
        """Whether the caller's token has not ended."""
        return self._clock.now_ms() < caller.ends_s * 1000

    def _mac(self, token_id: str) -> str:
        return hmac.new(self._key, token_id.encode(), hashlib.sha256).hexdigest()


class LoginDesk:
    """Answers identities that ask for a token, with the address at which the gateway serves."""

    def __init__(self, bus: Bus, shard: str, tokens: ShortTokens, url: str) -> None:
        self._bus, self._shard, self._tokens, self._url = bus, shard, tokens, url
        self._asked: dict[str, deque[str]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Listen and answer for ever; what could not be sent is asked again."""
        await self._bus.listen(subjects.login(self._shard, "*"), self._on_question)
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, {}
            for identity, questions in asked.items():
                answer = json.dumps({"url": self._url, "token": self._tokens.make(identity)}).encode()
                for question in questions:
                    try:
                        await self._bus.send(f"{subjects.login_inbox(identity)}.{question}", answer)
                    except KernelError as error:
                        log.warning("login_not_answered", identity=identity, error=str(error))

    def _on_question(self, subject: str, data: bytes) -> None:
        # The identity is the subject's; a question is a number under which it listens, and names nothing else.
        identity = subject.rpartition(".")[2]
        if subjects.NAME.fullmatch(identity) and QUESTION.fullmatch(data):
            self._asked.setdefault(identity, deque(maxlen=ASKED_MAX)).append(data.decode())
            self._wake.set()


def address_of(settings: GatewaySettings, port: int) -> str:
    """The URL at which clients reach the gateway: the one that is set, else by where it listens."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    own_tls = settings.tls_certificate_file is not None
    if is_loopback(settings.api_host):
        return f"{'https' if own_tls else 'http'}://{settings.api_host}:{port}"
    return f"https://{settings.allowed_hosts[0]}" + (f":{port}" if own_tls else "")
