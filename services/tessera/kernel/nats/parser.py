"""
Fast parser for whole messages from the server: found by their lengths and handed on at once.

The rest of the protocol (PING, INFO, errors, and anything unexpected) stays with nats-py's parser, which would parse
messages, too, but by several patterns and copies of each.
"""

from collections.abc import Callable

from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

MESSAGE = (b"MSG ", b"HMSG ")
LINE_END = b"\r\n"

OnMessage = Callable[[int, bytes, bytes, bytes, bytes], None]
"""Called with the subscription's number, subject, reply subject, data, raw headers. Must not raise."""


class MessageParser(Parser):
    """`on_message` gets each message in the order of the connection; `client` gets what is no message, from nats-py."""

    def __init__(self, client: object, on_message: OnMessage) -> None:
        super().__init__(client)
        self._on_message = on_message
        self.reads = 0  # grows with each piece that was read from the connection

    async def parse(self, data: bytes = b"") -> None:
        """Hand on all whole messages of `data`, keep a begun one. Raises ProtocolError for a malformed one."""
        self.reads += 1
        if self.state == AWAITING_CONTROL_LINE:
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            data = data[self._whole_messages(data) :]
            if data.startswith(MESSAGE):  # the beginning of one
                self.buf.extend(data)
                return
        if data:
            await super().parse(data)

    def _whole_messages(self, data: bytes) -> int:
        """Hand on the messages with which `data` begins; returns where the last whole one ends."""
        at = 0
        while data.startswith(MESSAGE, at):
            line_end = data.find(LINE_END, at)
            if line_end < 0:
                break
            # MSG subject sid [reply] size, or HMSG subject sid [reply] size-of-headers size-of-all
            words = data[at:line_end].split()
            with_headers = len(words[0]) == len(b"HMSG")
            try:
                sid, size = int(words[2]), int(words[-1])
                header_size = int(words[-2]) if with_headers else 0
            except (ValueError, IndexError) as error:
                raise ProtocolError("nats: malformed MSG") from error
            start = line_end + len(LINE_END)
            body, end = start + header_size, start + size
            if len(data) < end + len(LINE_END):
                break
            reply = words[3] if len(words) == 5 + with_headers else b""
            self._on_message(sid, words[1], reply, data[body:end], data[start:body])
            at = end + len(LINE_END)
        return at
