"""The newest part of a text of any length."""

from collections import deque


class NewestPart:
    """Holds at most `bytes_max` of what is added, the newest, from the beginning of a line on."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._held = self._added = 0

    def __bool__(self) -> bool:
        return self._added > 0

    def add(self, piece: bytes) -> None:
        """Append a piece; the oldest that no longer fit are dropped."""
        self._added += len(piece)
        piece = piece[-self._bytes_max :]
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held - len(self._pieces[0]) >= self._bytes_max:
            self._held -= len(self._pieces.popleft())

    def text(self) -> bytes:
        """What is held, with a line before it that says how much is not."""
        whole = b"".join(self._pieces)
        if self._added <= self._bytes_max:
            return whole
        notice = b"[the beginning of this log was not kept: it is longer than the bound of a job's logs]\n"
        part = whole[-max(0, self._bytes_max - len(notice)) :]
        return notice + part[part.find(b"\n") + 1 :]
