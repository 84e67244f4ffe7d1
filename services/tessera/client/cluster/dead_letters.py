"""Dead letters as an operator reads them: what could not be handled, of whom, and why. Read only."""

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nats.errors import Error as NatsError
from nats.js.api import RawStreamMsg
from nats.js.errors import APIError, NotFoundError
from nats.js.manager import JetStreamManager

from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import flat
from tessera.kernel.messaging.dead_letters import (
    CUT_HEADER,
    DELIVERIES_HEADER,
    ID_HEADER,
    REASON_HEADER,
    SUBJECT_HEADER,
)
from tessera.kernel.nats.once import connect_once
from tessera_schemas import subjects

OURS = (SUBJECT_HEADER, REASON_HEADER, DELIVERIES_HEADER, CUT_HEADER, ID_HEADER)


@dataclass(frozen=True, slots=True)
class Letter:
    """`seq` is its own number, `source_seq` that of the input on `source`. All texts can be printed safely."""

    seq: int
    stored_ms: int
    service: str
    source: str
    source_seq: int
    subject: str
    reason: str
    deliveries: int
    bytes_stored: int
    bytes_sent: int
    message_id: str
    headers: Mapping[str, str]
    data: bytes

    @classmethod
    def of(cls, stored: RawStreamMsg) -> "Letter":
        """Letter from a stored message, whose content is untrusted input."""
        headers = {flat(name): flat(value) for name, value in (stored.headers or {}).items()}
        _, _, service, source, source_seq = [*(stored.subject or "").split("."), "", "", "", "", ""][:5]
        data = stored.data or b""
        return cls(
            seq=stored.seq or 0,
            stored_ms=round(stored.time.timestamp() * 1000) if stored.time else 0,
            service=service,
            source=source,
            source_seq=_number(source_seq),
            subject=headers.get(SUBJECT_HEADER, "-"),
            reason=headers.get(REASON_HEADER, "-"),
            deliveries=_number(headers.get(DELIVERIES_HEADER, "")),
            bytes_stored=len(data),
            bytes_sent=_number(headers.get(CUT_HEADER, "")) or len(data),
            message_id=headers.get(ID_HEADER, ""),
            headers={name: value for name, value in headers.items() if name not in OURS and name != "Nats-Msg-Id"},
            data=data,
        )

    def plain(self) -> dict[str, Any]:
        """JSON form of the letter, without its body."""
        names = [name for name in self.__slots__ if name not in ("data", "headers")]
        return {name: getattr(self, name) for name in names} | {"headers": dict(self.headers)}

    def body(self) -> dict[str, str]:
        """The body for a program: as text where it is text, else in base64."""
        try:
            return {"data": self.data.decode()}
        except UnicodeDecodeError:
            return {"data_base64": b64encode(self.data).decode()}


class DeadLetterBox:
    """The stream of dead letters of one shard. Raises Failure when it cannot be read."""

    def __init__(self, jetstream: JetStreamManager, shard: str) -> None:
        self._jetstream, self._shard = jetstream, shard
        self._stream = subjects.stream("DLQ", shard)

    @classmethod
    @asynccontextmanager
    async def open(cls, where: Where) -> AsyncIterator["DeadLetterBox"]:
        """Opens the box with the operator's identity: no other may read it."""
        login = where.identity(subjects.OPERATOR).nats
        client = await connect_once(where.nats_url, login.user, login.password)
        try:
            yield cls(client.jsm(), where.shard)
        except (APIError, NatsError, TimeoutError) as error:
            raise Failure(
                Exit.UNAVAILABLE, f"dead letters: NATS cannot read them ({_why(error)}); see `tessera doctor`"
            ) from error
        finally:
            await client.close()

    async def newest(self, count: int) -> tuple[list[Letter], int]:
        """The newest letters, oldest first, and how many there are in all."""
        state = (await self._jetstream.stream_info(self._stream)).state
        letters: list[Letter] = []
        seq = max(state.first_seq, state.last_seq - count + 1)
        while state.messages and seq <= state.last_seq:
            letters.append(await self._at_or_after(seq))
            seq = letters[-1].seq + 1
        return letters, state.messages

    async def letter(self, seq: int) -> Letter:
        """Raises Failure when there is none."""
        try:
            return Letter.of(await self._jetstream.get_msg(self._stream, seq))
        except NotFoundError as error:
            sentence = f"dead letter {seq}: there is none in shard {self._shard}; see `tessera dlq list`"
            raise Failure(Exit.NOT_FOUND, sentence) from error

    async def _at_or_after(self, seq: int) -> Letter:
        everything = f"dlq.{self._shard}.>"
        return Letter.of(await self._jetstream.get_msg(self._stream, seq, subject=everything, next=True))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _why(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
