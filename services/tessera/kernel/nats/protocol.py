"""
The bytes that JetStream speaks, as pure functions: headers, statuses, publish acks, ack subjects.

Header blocks come raw, since decoding every header of every message costs more than all the rest of receiving it.
Names are looked up from the end: the server appends its own headers, so that a sender cannot forge them.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from tessera.kernel.errors import Conflict, Full, KernelError, Poison, Transient
from tessera.kernel.ports import Message, Outgoing

MSG_ID = "Nats-Msg-Id"

WRONG_LAST_SEQUENCE = frozenset({10071, 10164})  # 10164: lost to an append that is not yet committed
STORE_FAILED = 10077
MESSAGE_TOO_BIG = 10054

_STATUS_LINE = b"NATS/1.0 "
_LINE_ENDS = str.maketrans("\r\n", "  ")
_OWN_HEADER = re.compile(rb"\r\n(?!Nats-(?!Msg-Id:))([!-9;-~]+):[ \t]*([^\r]*?)[ \t]*(?=\r)")


def status(headers: bytes) -> int:
    """The status code of a control message; 0 for an ordinary one."""
    return int(headers[9:12]) if headers.startswith(_STATUS_LINE) else 0


def status_text(headers: bytes) -> str:
    """Words behind the code of a control message's status line."""
    return headers[13:].split(b"\r\n", 1)[0].decode("utf-8", "replace")


def number(headers: bytes, name: bytes) -> int | None:
    """The integer in a header that the server wrote, None when it is not there."""
    at = headers.rfind(b"\r\n" + name + b": ")
    if at < 0:
        return None
    start = at + len(name) + 4
    return int(headers[start : headers.find(b"\r\n", start)])


def text(headers: bytes, name: bytes) -> str:
    """Text of a header that the server wrote; "" when the header is not there."""
    at = headers.rfind(b"\r\n" + name + b": ")
    start = at + len(name) + 4
    return "" if at < 0 else headers[start : headers.find(b"\r\n", start)].decode()


def own_headers(headers: bytes) -> dict[str, str]:
    """Headers that the sender put on a message: all but the server's `Nats-` headers, and the message id."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _OWN_HEADER.findall(headers)}


def publish_headers(out: Outgoing) -> dict[str, str] | None:
    """Sender's headers with the conditions of the compare-and-swap; None when there is no header at all."""
    headers = dict(out.headers)
    if out.expected_last_seq is not None:
        headers["Nats-Expected-Last-Sequence"] = str(out.expected_last_seq)
    if out.expected_last_subject_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(out.expected_last_subject_seq)
    return headers or None


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they go over the wire; a line end in a value becomes a blank, or it would begin another header."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        lines = "".join([f"{name}: {value.translate(_LINE_ENDS)}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def publish_command(subject: str, reply: str, block: bytes, data: bytes) -> bytes:
    """
    The bytes that publish `data` with the headers of `block`, b"" for none.

    Raises Poison for a subject with a blank or a line end: what is behind it would be another command to the server.
    """
    if subject.split() != [subject] or (reply and reply.split() != [reply]):
        raise Poison(f"{subject!r}, answer to {reply!r}: not a subject")
    if not block:
        return f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n"
    line = f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n"
    return b"".join((line.encode(), block, data, b"\r\n"))


def publish_outcome(subject: str, data: bytes, headers: bytes) -> int | KernelError:
    """The stream sequence that a publish ack reports, or the error it stands for."""
    if status(headers) == 503:
        return Transient(f"no stream takes {subject}, or JetStream is not available")
    ack: dict[str, Any] = orjson.loads(data)
    error = ack.get("error")
    return int(ack["seq"]) if error is None else refusal(subject, error)


def refusal(subject: str, error: Mapping[str, Any]) -> KernelError:
    """The kernel error for JetStream's `error` object; the message was certainly not stored."""
    code, why = error.get("err_code"), str(error.get("description", ""))
    if code in WRONG_LAST_SEQUENCE or "wrong last sequence" in why:
        return Conflict(f"{subject}: {why}")
    if code == STORE_FAILED and "exceeded" in why:
        return Full(f"{subject}: {why}")
    if code == MESSAGE_TOO_BIG:
        return Poison(f"{subject}: {why}")
    return Transient(f"{subject}: {why} ({code})")


def stored_message(data: bytes, headers: bytes) -> Message:
    """A message as a direct get returns it."""
    seq, stored = number(headers, b"Nats-Sequence"), milliseconds(text(headers, b"Nats-Time-Stamp"))
    return Message(text(headers, b"Nats-Subject"), seq or 0, data, own_headers(headers), stored)


def milliseconds(stamp: str) -> int:
    """Milliseconds since the Unix epoch of a server's time stamp; 0 for "", and for the year 1 of an empty stream."""
    return max(0, int(datetime.fromisoformat(stamp).timestamp() * 1000)) if stamp else 0


def delivery_position(ack_subject: bytes) -> tuple[int, int, int]:
    """
    Stream sequence, number of deliveries and time of the message in milliseconds, from the subject on which a delivery
    is to be answered.

    `$JS.ACK.<stream>.<durable>.<delivered>.<stream seq>.<durable seq>.<ns>.…`, since 2.12 optionally with domain and
    account before the stream.
    """
    tokens = ack_subject.split(b".")
    at = 6 if len(tokens) >= 11 else 4
    return int(tokens[at + 1]), int(tokens[at]), int(tokens[at + 3]) // 1_000_000
