"""Log of one pod of a job, as the gateway has it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from tessera.client.connect.api import Api, path_of
from tessera_schemas.views import JobView


@dataclass(frozen=True, slots=True)
class LogPart:
    """A pod by its rank, its run (None: the newest), and how much of its log to read; 0 means all."""

    rank: int = 0
    attempt: int | None = None
    follow: bool = False
    tail: int = 0
    since_seconds: int = 0


RECENT_BYTES = 4096
"""Newest bytes that a reader keeps, so that it knows them again."""


class LogPlace:
    """
    Place that a reader of one run's log has come to.

    Read from its beginning, the place is a number of bytes. A log whose oldest part is gone since, as kubelets rotate
    it, or of which the newest part alone was asked for, is searched for the newest bytes that were read.
    """

    def __init__(self, is_whole: bool) -> None:
        self._offset, self._recent = 0 if is_whole else None, b""

    def __bool__(self) -> bool:
        return bool(self._recent)

    def move(self, piece: bytes) -> None:
        """The piece was read."""
        self._offset = None if self._offset is None else self._offset + len(piece)
        self._recent = (self._recent + piece)[-RECENT_BYTES:]

    def begin_again(self, text: bytes) -> bytes | None:
        """The text of the whole log behind the place, which moves to its end; None: the place is not in it."""
        at = self._offset
        if at is None or text[max(0, at - len(self._recent)) : at] != self._recent:
            found = text.rfind(self._recent)
            at = None if found < 0 else found + len(self._recent)
        self._offset, self._recent = len(text), text[-RECENT_BYTES:]
        return None if at is None else text[at:]


async def pieces_from(
    api: Api, job: JobView, part: LogPart, place: LogPlace, lost: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """
    As `log_pieces`, from where a reader stood when its connection was lost; moves the place.

    Calls `lost` where the log no longer holds it; then all that is kept comes again. The log has no place to ask for,
    so all of it is read up to now, then followed.
    """
    known = 0
    if place:
        part = replace(part, tail=0, since_seconds=0)
        async with aclosing(log_pieces(api, job, replace(part, follow=False))) as pieces:
            text = b"".join([piece async for piece in pieces])
        rest, known = place.begin_again(text), len(text)
        if rest is None:
            lost()
        yield text if rest is None else rest
    async with aclosing(log_pieces(api, job, part)) as pieces:
        async for piece in pieces:
            new, known = piece[known:], max(0, known - len(piece))
            place.move(new)
            yield new


def log_pieces(api: Api, job: JobView, part: LogPart) -> AsyncGenerator[bytes, None]:
    """
    Pieces of the log as they come, to its end; that of a pod that is gone may be stored.

    Raises Failure where there is none, Transient when it is cut.
    """
    return api.pieces(
        path_of(job.job_id, "logs"),
        rank=part.rank,
        attempt=part.attempt,
        follow="true" if part.follow else None,
        tail=part.tail,
        since_seconds=part.since_seconds,
    )


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Whole lines of a text that comes in pieces; what cannot be read as UTF-8 is replaced."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
