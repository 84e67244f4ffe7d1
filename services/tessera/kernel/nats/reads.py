"""
Reading stored messages: by direct get (any replica, cheap) and through the leader (the tail).

No consumer is made for either, so that no service needs the right to make one.
"""

from base64 import b64decode

import orjson

from tessera.kernel.errors import KernelError, Poison, Transient
from tessera.kernel.nats.protocol import milliseconds, number, own_headers, status, status_text, stored_message
from tessera.kernel.nats.wire import NatsWire, Reply
from tessera.kernel.ports import Message, Usage

READ_BYTES = 4 << 20  # per direct get; one message of any size comes through all the same
READ_SECONDS = 5.0

END_OF_BATCH = 204
NOT_FOUND = 404
TOO_MANY_SUBJECTS = 413


class NatsReads:
    def __init__(self, wire: NatsWire) -> None:
        self._wire = wire

    async def get(self, stream: str, seq: int) -> Message | None:
        """The message with sequence `seq`. A replica that lags answers None for one that was just stored."""
        reply = await self._one(f"$JS.API.DIRECT.GET.{stream}", {"seq": seq})
        code = status(reply.headers)
        if code == 0:
            return stored_message(reply.data, reply.headers)
        if code == NOT_FOUND:
            return None
        raise _unreadable(stream, reply)

    async def last(self, stream: str, subject: str) -> Message | None:
        """The newest message on `subject`, from the leader. A deposed leader may answer stale: confirm by CAS."""
        reply = await self._one(f"$JS.API.STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        if status(reply.headers):
            raise _unreadable(stream, reply)
        answer = orjson.loads(reply.data)
        if error := answer.get("error"):
            if error.get("err_code") == 10037:  # no message found
                return None
            raise Transient(f"{stream}: {error.get('description')}")
        found = answer["message"]
        headers = own_headers(b64decode(found.get("hdrs", "")))
        stored = milliseconds(found.get("time", ""))
        return Message(found["subject"], found["seq"], b64decode(found.get("data", "")), headers, stored)

    async def last_all(self, stream: str, subject: str) -> list[Message]:
        """The newest message of each subject that matches, in stream order; at most 1,024 subjects."""
        found: list[Message] = []
        request: dict[str, object] = {"multi_last": [subject], "batch": 1024, "max_bytes": READ_BYTES}
        while True:
            messages, pending, up_to = await self._batch(stream, request)
            found += messages
            if not pending:
                return found
            request |= {"seq": found[-1].seq + 1, "up_to_seq": up_to}

    async def batch(self, stream: str, subject: str, first: int, limit: int) -> tuple[list[Message], int]:
        """
        Messages on `subject` from sequence `first` on, without a gap, and how many more there are (0: that was all).

        Raises Transient when nobody answered.
        """
        request = {"seq": first, "batch": limit, "next_by_subj": subject, "max_bytes": READ_BYTES}
        messages, pending, _ = await self._batch(stream, request)
        return messages, pending

    async def usage(self, stream: str) -> Usage:
        """Use of the stream, as its leader has it."""
        reply = await self._one(f"$JS.API.STREAM.INFO.{stream}", {})
        if status(reply.headers):
            raise _unreadable(stream, reply)
        answer = orjson.loads(reply.data)
        if error := answer.get("error"):
            raise Transient(f"{stream}: {error.get('description')}")
        state, bytes_max = answer["state"], max(0, answer["config"].get("max_bytes", 0))
        first_ms = milliseconds(state.get("first_ts", "")) if state["bytes"] else 0
        return Usage(state["bytes"], bytes_max, max(1, state["first_seq"]), first_ms, state["last_seq"])

    async def _batch(self, stream: str, request: dict[str, object]) -> tuple[list[Message], int, int]:
        subject = f"$JS.API.DIRECT.GET.{stream}"
        replies = await self._wire.ask_many(subject, orjson.dumps(request), READ_SECONDS)
        if not replies:
            raise Transient(f"{stream}: no answer to a direct get")
        end = replies[-1]
        code = status(end.headers)
        if code == NOT_FOUND:
            return [], 0, 0
        if code == END_OF_BATCH:
            pending = number(end.headers, b"Nats-Num-Pending") or 0
            return _unbroken(replies[:-1]), pending, number(end.headers, b"Nats-UpTo-Sequence") or 0
        if code:
            raise _unreadable(stream, end)
        return _unbroken(replies), 1, 0  # cut off in the middle: what came is good, more is to come

    async def _one(self, subject: str, request: dict[str, object]) -> Reply:
        outcome = await (await self._wire.ask(subject, orjson.dumps(request), READ_SECONDS))
        if isinstance(outcome, KernelError):
            raise Transient(str(outcome)) from outcome  # a read has no outcome that could be unknown
        return outcome


def _unbroken(replies: list[Reply]) -> list[Message]:
    """The replies of one batch up to the first that does not name the one before it."""
    messages: list[Message] = []
    for reply in replies:
        before = number(reply.headers, b"Nats-Last-Sequence")
        if before != (messages[-1].seq if messages else 0):
            break
        messages.append(stored_message(reply.data, reply.headers))
    return messages


def _unreadable(stream: str, reply: Reply) -> KernelError:
    code = status(reply.headers)
    if code == TOO_MANY_SUBJECTS:
        return Poison(f"{stream}: more than 1024 subjects match")
    if code == 503:
        return Transient(f"{stream}: no such stream, or no direct get on it, or JetStream is not available")
    return Transient(f"{stream}: {code} {status_text(reply.headers)}")
