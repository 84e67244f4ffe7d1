"""
The public events as they are stored, compared one by one with those that follow from the ledger, as its replay goes by.

Events grow too old, so that the stream begins anywhere; from there on none may be missing, doubled, invented or say
something else. What the ledger gives and the stream does not have at its end yet is on its way.
"""

from collections.abc import AsyncIterator
from typing import Any

import orjson

from tessera.client.ledger.replay import ReplayReport
from tessera.kernel.ports import Message
from tessera.projection.events import START, Cursor, StoredEvent
from tessera_schemas.events import CURSOR_HEADER, EVENT_TYPES

MODELS = {model.type: model for model in EVENT_TYPES}


class EventsBesideLedger:
    """`compare` with what each message of the ledger gives, in order, then `finish`. Findings go into the report."""

    def __init__(self, stored: AsyncIterator[Message], report: ReplayReport, after_n: int = 0) -> None:
        """Events of messages up to `after_n` are passed over: the ledger begins behind it."""
        self._stored, self._report, self._after_n = stored, report, after_n
        self._next: Message | None = None
        self._at = self._first = START
        self._begun = self._ended = False
        self._compared = self._lacking = self._on_their_way = 0

    async def compare(self, due: tuple[StoredEvent, ...]) -> None:
        """The events of one message of the ledger."""
        await self._begin()
        for event in due:
            if event.cursor < self._first:
                continue  # grew too old
            while not self._ended and self._at < event.cursor:
                self._report.found(f"public event {self._at}: comes from no record")
                await self._advance()
            if self._ended:
                self._on_their_way += 1
            elif self._at > event.cursor:
                self._report.found(f"public event {event.cursor}: is missing")
            else:
                self._compare(event)
                await self._advance()

    async def finish(self, head: int) -> None:
        """
        Reports events that are stored behind the last one that the ledger gives, up to message `head`, its replay's
        end.
        """
        await self._begin()
        while not self._ended and self._at.n <= head:
            self._report.found(f"public event {self._at}: comes from no record")
            await self._advance()
        notes = {
            self._on_their_way: "public events that follow from the ledger are not published yet",
            self._lacking: "public events lack fields that this build gives, as those of an older release do",
        }
        self._report.notes += [f"{count} {text}" for count, text in notes.items() if count]
        self._report.events = self._compared

    async def _begin(self) -> None:
        if not self._begun:
            await self._advance()
            self._begun, self._first = True, self._at

    def _compare(self, due: StoredEvent) -> None:
        assert self._next is not None
        self._compared += 1
        if (self._next.subject, self._next.data) == (due.subject, due.data):
            return
        wrong = _difference(self._next, due)
        if wrong:
            self._report.found(f"public event {due.cursor}: {wrong}")
        else:
            self._lacking += 1

    async def _advance(self) -> None:
        """Moves to the next stored event whose ledger position is behind that of the event before it."""
        async for message in self._stored:
            try:
                cursor = Cursor.parse(message.headers[CURSOR_HEADER])
            except (KeyError, ValueError):
                self._report.found(
                    f"event {message.seq} on {message.subject} carries no cursor: not an event of Tessera"
                )
                continue
            if cursor.n <= self._after_n:
                continue
            if self._begun and cursor <= self._at:
                self._report.found(f"public event {cursor}: stands behind {self._at}")
                continue
            self._next, self._at = message, cursor
            return
        self._next, self._ended = None, True


def _difference(stored: Message, due: StoredEvent) -> str:
    """The field in which a stored event differs from the one that is due; "" when it only lacks optional fields."""
    if stored.subject != due.subject:
        return f"is on {stored.subject}, not on {due.subject}"
    theirs, ours = _read(stored.data), orjson.loads(due.data)
    given, follows = theirs.pop("data", {}), ours.pop("data")
    if theirs != ours or not isinstance(given, dict):
        return f"its envelope is {_text(theirs)}; from the ledger follows {_text(ours)}"
    model = MODELS[ours["type"]]
    optional = {name for name, field in model.model_fields.items() if not field.is_required()}
    known = {name: value for name, value in given.items() if name in model.model_fields}
    wrong = {name for name in known.keys() | follows.keys() if known.get(name) != follows.get(name)}
    if any(name in known or name not in optional for name in wrong):
        return f"says {_text(given)}; from the ledger follows {_text(follows)}"
    return ""


def _read(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()[:300]
