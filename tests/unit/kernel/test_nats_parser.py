"""However the server's bytes come in pieces, the messages are those that nats-py's own parser would find."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from tessera.kernel.nats.parser import LINE_BYTES_MAX, MessageParser, ProtocolError

Heard = list[tuple[object, ...]]
HEADERS = b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n"


class Client:
    """Writes down what a parser tells its client."""

    def __init__(self) -> None:
        self.count_received: Heard = []

    def on_message(self, *message: object) -> None:
        self.count_received.append(message)

    def on_line(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        if verb == b"-ERR":
            self.count_received.append(("error", rest.decode().lower()))
        elif verb == b"INFO":
            self.count_received.append(("info", str(json.loads(rest))))
        elif verb != b"+OK":
            self.count_received.append((verb.decode().lower(),))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.on_message(sid, subject, reply, data, headers or b"")

    async def _process_ping(self) -> None:
        self.count_received.append(("ping",))

    async def _process_pong(self) -> None:
        self.count_received.append(("pong",))

    async def _process_err(self, text: str) -> None:
        self.count_received.append(("error", text))

    async def _process_info(self, info: object) -> None:
        self.count_received.append(("info", str(info)))


def heard_by_ours(pieces: Sequence[bytes]) -> Heard:
    client = Client()
    parser = MessageParser(client.on_message, client.on_line)
    for piece in pieces:
        parser.feed(piece)
    return client.count_received


async def heard_by_the_library(pieces: Sequence[bytes]) -> Heard:
    client = Client()
    parser = Parser(client)
    for piece in pieces:
        await parser.parse(piece)
    return client.count_received


def message(subject: bytes, sid: int, reply: bytes, headers: bytes, data: bytes) -> bytes:
    words = [b"HMSG" if headers else b"MSG", subject, b"%d" % sid, *([reply] if reply else [])]
    sizes = [b"%d" % len(headers), b"%d" % len(headers + data)] if headers else [b"%d" % len(data)]
    return b" ".join([*words, *sizes]) + b"\r\n" + headers + data + b"\r\n"


messages = st.builds(
    message,
    subject=st.sampled_from([b"a", b"live.ledger.main", b"_INBOX.x.17"]),
    sid=st.integers(1, 9_999),
    reply=st.sampled_from([b"", b"$JS.ACK.SUBMIT.admission.1.2.3"]),
    headers=st.sampled_from([b"", HEADERS, b"NATS/1.0 503\r\n\r\n"]),
    data=st.one_of(st.binary(max_size=40), st.just(b"\r\nMSG a 1 5\r\nHMSG ")),
)
OTHERS = (b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Stale Connection'\r\n", b'INFO {"max_payload": 1}\r\n')


@given(st.lists(st.one_of(messages, st.sampled_from(OTHERS)), max_size=8), st.data())
async def test_messages_and_all_else_are_heard_in_order_however_they_are_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert heard_by_ours(pieces) == await heard_by_the_library([stream])


def test_a_message_may_come_byte_by_byte() -> None:
    stream = message(b"a", 1, b"r", HEADERS, b"data") + message(b"b", 2, b"", b"", b"")
    count_received = heard_by_ours([stream[at : at + 1] for at in range(len(stream))])
    assert count_received == [(1, b"a", b"r", b"data", HEADERS), (2, b"b", b"", b"", b"")]


@pytest.mark.parametrize("line", [b"MSG a one 3\r\nabc\r\n", b"MSG a\r\n", b"x" * (LINE_BYTES_MAX + 1)])
def test_what_cannot_be_understood_ends_the_connection(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        heard_by_ours([line])
