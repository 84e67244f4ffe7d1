"""Parser of what a NATS server sends: whole messages by their lengths, everything else line by line."""

from collections.abc import Callable

MESSAGE = (b"MSG ", b"HMSG ")
LINE_END = b"\r\n"
LINE_BYTES_MAX = 1 << 16  # INFO names every server of a cluster

OnMessage = Callable[[int, bytes, bytes, bytes, bytes], None]
"""Called with the subscription's number, subject, reply subject, data, raw headers. Must not raise."""


class ProtocolError(ConnectionError):
    """Bytes that are not NATS: nothing behind them can be understood, and the connection is no use any more."""


class MessageParser:
    """`on_message` and `on_line` get what the server sent in its order, however it was cut on the way."""

    def __init__(self, on_message: OnMessage, on_line: Callable[[bytes], None]) -> None:
        self._on_message, self._on_line = on_message, on_line
        self._pieces: list[bytes] = []  # of a message or line that has only begun
        self._held = self._needed = 0  # bytes of the pieces, and how many are needed at least

    def feed(self, data: bytes) -> None:
        """Hand on all that is whole, keep the rest. Raises ProtocolError for what cannot be understood."""
        if self._pieces:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data = b"".join(self._pieces)
        at = self._parse(data)
        self._held = len(data) - at
        self._pieces = [data[at:]] if self._held else []

    def _parse(self, data: bytes) -> int:
        """Hand on what is whole; returns where the last whole message or line ends."""
        at = self._needed = 0
        while (line_end := data.find(LINE_END, at)) >= 0:
            after = line_end + len(LINE_END)
            if not data.startswith(MESSAGE, at):
                self._on_line(data[at:line_end])
                at = after
                continue
            # MSG subject sid [reply] size, or HMSG subject sid [reply] size-of-headers size-of-all
            words = data[at:line_end].split()
            with_headers = len(words[0]) == len(b"HMSG")
            try:
                sid, size = int(words[2]), int(words[-1])
                header_size = int(words[-2]) if with_headers else 0
            except (ValueError, IndexError) as error:
                raise ProtocolError(f"malformed message: {data[at:line_end][:100]!r}") from error
            body, end = after + header_size, after + size
            if len(data) < end + len(LINE_END):
                self._needed = end + len(LINE_END) - at
                return at
            reply = words[3] if len(words) == 5 + with_headers else b""
            self._on_message(sid, words[1], reply, data[body:end], data[after:body])
            at = end + len(LINE_END)
        if len(data) - at > LINE_BYTES_MAX:
            raise ProtocolError(f"a line without an end: {data[at:][:100]!r}")
        return at
