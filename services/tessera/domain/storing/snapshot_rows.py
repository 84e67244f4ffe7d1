"""
Reads the rows of a snapshot: those that differ in a few plain fields only are copies of the first of their kind.

The form that is stored knows nothing of it. What follows is as strict as reading each row by itself: a copy is made
only of a row that was read whole, and which, with other values in those fields, has the very bytes around them.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import orjson
from pydantic import TypeAdapter

from tessera.domain.devices.offers import DeviceClass, KnownLayout, KnownSelection
from tessera.domain.devices.resources import Node
from tessera.domain.entities import (
    ClosedNamespace,
    Drain,
    Earmark,
    EndedJob,
    Job,
    MigChange,
    NodeBackoff,
    PoolStops,
    PublishedSlots,
    QueueOrder,
    RefusedWork,
    RemovedQueue,
    Run,
    Use,
)
from tessera.domain.folding.decayed_usage import DecayedUsage
from tessera.domain.folding.spending import BudgetUse
from tessera.domain.health.known import Fence, NodeHealth
from tessera.domain.health.node_tests import NodeTest
from tessera.domain.health.reputation import FailureRate, Reputation
from tessera.domain.mix import Mix, Seen
from tessera.domain.moves.offers import MovedRuns, OfferedMove
from tessera.domain.moves.scores import MovePlan
from tessera.domain.quota.bookings import Booking
from tessera.domain.runtimes import Sketch
from tessera.domain.storing.canonical import encode
from tessera.domain.storing.fast import replacer
from tessera.domain.work.evidence import RememberedNode
from tessera.domain.work.gang import Gang, gang_of

ROWS: dict[str, tuple[TypeAdapter[Any], str]] = {
    "jobs": (TypeAdapter(Job), "job_id"),
    "ended": (TypeAdapter(EndedJob), "job_id"),
    "runs": (TypeAdapter(Run), "run_id"),
    "nodes": (TypeAdapter(Node), "name"),
    "queue_use": (TypeAdapter(Use), "name"),
    "tenant_use": (TypeAdapter(Use), "name"),
    "earmarks": (TypeAdapter(Earmark), "owner"),
    "lines": (TypeAdapter(QueueOrder), "pool"),
    "drains": (TypeAdapter(Drain), "node"),
    "runtimes": (TypeAdapter(Sketch), "key"),
    "seen": (TypeAdapter(Seen), "key"),
    "mixes": (TypeAdapter(Mix), "pool"),
    "lefts": (TypeAdapter(PublishedSlots), "pool"),
    "refused": (TypeAdapter(RefusedWork), "work_id"),
    "backoffs": (TypeAdapter(NodeBackoff), "node"),
    "stops": (TypeAdapter(PoolStops), "pool"),
    "closed": (TypeAdapter(ClosedNamespace), "tenant"),
    "remembered_nodes": (TypeAdapter(RememberedNode), "name"),
    "removed_queues": (TypeAdapter(RemovedQueue), "name"),
    "decayed": (TypeAdapter(DecayedUsage), "name"),
    "spending": (TypeAdapter(BudgetUse), "name"),
    "layouts": (TypeAdapter(KnownLayout), "digest"),
    "device_classes": (TypeAdapter(DeviceClass), "name"),
    "selections": (TypeAdapter(KnownSelection), "key"),
    "mig_changes": (TypeAdapter(MigChange), "node"),
    "health": (TypeAdapter(NodeHealth), "node"),
    "fences": (TypeAdapter(Fence), "node"),
    "reputations": (TypeAdapter(Reputation), "node"),
    "failure_rates": (TypeAdapter(FailureRate), "pool"),
    "node_tests": (TypeAdapter(NodeTest), "node"),
    "bookings": (TypeAdapter(Booking), "name"),
    "moves": (TypeAdapter(OfferedMove), "run_id"),
    "moved": (TypeAdapter(MovedRuns), "tenant"),
    "move_plans": (TypeAdapter(MovePlan), "owner"),
}
KINDS_MAX = 4_096
"""Rows kept to be copied: a shard of more kinds than these reads more of its rows whole."""

ROLES = b'"roles":['
AFTER_ROLES = {"jobs": b'],"amount":', "runs": b'],"amount":', "earmarks": b'],"placements":'}
"""What follows the roles of a row. A quote inside a text is escaped and no field of a role is called so."""


class _Form:
    """
    Places where the rows of one table differ: texts and numbers from one field on up to another, as declared; "" after
    the last one, which is alone then, stands for the end of the row: later fields that it does not use are left out.
    """

    def __init__(self, kind: type[Any], *spans: tuple[str, str]) -> None:
        names = [field.name for field in fields(kind)]
        self._spans = [
            names[names.index(first) : names.index(after) if after else names.index(first) + 1]
            for first, after in spans
        ]
        self._marks = [(b'"%s":' % first.encode(), b',"%s":' % end.encode() if end else b"}") for first, end in spans]
        self.names = [name for span in self._spans for name in span]
        self._types = [get_type_hints(kind)[name] for name in self.names]
        self.copy = replacer(kind, tuple(self.names))

    def cut(self, body: bytes) -> tuple[list[bytes], dict[str, Any]] | None:
        """Bytes around those fields, and the fields; None where they are not found."""
        around, own, at = [], [], 0
        for first, after in self._marks:
            start = body.find(first, at)
            stop = body.find(after, start) if after != b"}" else len(body) - 1
            if start < 0 or stop < 0:
                return None
            around.append(body[at:start])
            own.append(body[start:stop])
            at = stop
        around.append(body[at:])
        try:
            found = orjson.loads(b"{%s}" % b",".join(own))
        except orjson.JSONDecodeError:
            return None
        is_own = list(found) == self.names and list(map(type, found.values())) == self._types
        return (around, found) if is_own else None

    def stands_around(self, around: Sequence[bytes], row: Any) -> bool:
        """Whether these bytes stand around the fields of `row`, whatever the fields hold."""
        other = [_another(getattr(row, name)) for name in self.names]
        given = dict(zip(self.names, other, strict=True))
        own = [orjson.dumps({name: given[name] for name in span})[1:-1] for span in self._spans]
        between = [part for pair in zip(around, own, strict=False) for part in pair]
        return encode(self.copy(row, *other)) == b"".join((*between, around[-1]))


def _another(value: str | int) -> str | int:
    return value + 1 if isinstance(value, int) else f"{value}?"


_OF_JOBS = ("job_id", "priority_class"), ("taken_n", "phase"), ("told_ts", "time_limit_seconds")
FORMS = {"jobs": (_Form(Job, *_OF_JOBS, ("number", "")), _Form(Job, *_OF_JOBS))}
"""
Tables of which a shard may have a hundred thousand rows alike, of jobs those with a number and older ones; of ended
jobs, packing costs more than reading.
"""
OFTEN_EQUAL = ("tenant", "queue", "name", "spec_hash")
"""Of these fields, those whose text many rows share: it is held once."""


class RowReader:
    """Reads rows of one snapshot. Roles are half of most of them and often the same: equal ones are read once."""

    def __init__(self) -> None:
        self._gangs: dict[bytes, Gang] = {}
        self._texts: dict[str, str] = {}
        self._firsts: dict[tuple[bytes, ...], Any] = {}

    def read(self, name: str, bodies: Sequence[bytes]) -> list[Any]:
        """Rows of one table. Raises KeyError for an unknown table, ValidationError for what is no row of it."""
        forms = FORMS.get(name)
        return [self._whole(name, body) for body in bodies] if forms is None else self._alike(name, forms, bodies)

    def _alike(self, name: str, forms: Sequence[_Form], bodies: Sequence[bytes]) -> list[Any]:
        rows: list[Any] = []
        last, first, once = list[bytes](), None, self._texts.setdefault
        for body in bodies:
            form, cut = next(((form, cut) for form in forms if (cut := form.cut(body)) is not None), (forms[0], None))
            if cut is None:
                rows.append(self._whole(name, body))
                continue
            around, own = cut
            if around != last:
                last, first = around, self._firsts.get(tuple(around))
            if first is None:
                rows.append(self._first(name, form, around, body))
                first = self._firsts.get(tuple(around))
                continue
            for each in OFTEN_EQUAL:
                own[each] = once(own[each], own[each])
            rows.append(form.copy(first, *own.values()))
        return rows

    def _first(self, name: str, form: _Form, around: Sequence[bytes], body: bytes) -> Any:
        """The first row of its kind, kept to be copied where that can be done."""
        row = self._whole(name, body)
        if len(self._firsts) >= KINDS_MAX:
            self._firsts.clear()
        if form.stands_around(around, row):
            self._firsts[tuple(around)] = row
        return row

    def _whole(self, name: str, body: bytes) -> Any:
        adapter = ROWS[name][0]
        if name not in AFTER_ROLES:
            return adapter.validate_json(body)
        start = body.find(ROLES) + len(ROLES)
        stop = body.find(AFTER_ROLES[name], start)
        gang = self._gangs.get(body[start:stop])
        if gang is None:
            row = adapter.validate_json(body)
            gang = self._gangs[body[start:stop]] = gang_of(row.roles)
        else:
            row = adapter.validate_json(body[:start] + body[stop:])
        object.__setattr__(row, "roles", gang)  # it is nobody else's yet
        return row
