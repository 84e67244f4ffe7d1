"""
A state as bytes and back. A restored state is trusted only if it hashes to a `checkpoint` record of the ledger.

The form is lines of JSON: first the scalars, then one line per entity, so that it can be cut into chunks anywhere.
"""

from collections.abc import Iterator
from typing import Any

import orjson
from pydantic import TypeAdapter

from tessera.domain.canonical import encode
from tessera.domain.entities import Drain, Earmark, EndedJob, Job, PublishedSlots, QueueOrder, RefusedWork, Run, Use
from tessera.domain.errors import Contradiction
from tessera.domain.gang import Gang, gang_of
from tessera.domain.mix import Mix, Seen
from tessera.domain.resources import Node
from tessera.domain.runtimes import Sketch
from tessera.domain.state import State
from tessera.domain.statehash import StateHash
from tessera_schemas.config import Config
from tessera_schemas.ledger import FORMAT

SNAPSHOT_VERSION = 1
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
}


def dump(state: State) -> Iterator[bytes]:
    """The lines of a snapshot."""
    yield orjson.dumps(
        {
            "version": SNAPSHOT_VERSION,
            "n": state.n,
            "chain": state.chain,
            "epoch": state.epoch,
            "ts": state.ts,
            "format": state.format,
            "facts_upto": state.facts_upto,
            "config": state.config.model_dump(mode="json"),
        }
    )
    for name in ROWS:
        for row in getattr(state, name).values():
            yield name.encode() + b" " + encode(row)


def load(lines: Iterator[bytes], hasher: StateHash | None = None) -> State:
    """
    The state of `dump`; raises Contradiction when the form is not the one this build knows.

    A new `hasher` follows the state from there on. It takes the rows' bytes as they stand, which is half the cost of a
    restart: the hash is the ledger's only if they are the very bytes that the writer hashed.
    """
    head = orjson.loads(next(lines, b"{}"))
    if not isinstance(head, dict) or head.get("version") != SNAPSHOT_VERSION:
        raise Contradiction(f"snapshot begins with {str(head)[:100]}, which is not known here")
    if head["format"] > FORMAT:
        raise Contradiction(f"snapshot of a ledger of format {head['format']}; this build knows {FORMAT}")
    state = State()
    state.n, state.chain, state.epoch = head["n"], head["chain"], head["epoch"]
    state.ts, state.format, state.facts_upto = head["ts"], head["format"], head["facts_upto"]
    state.set_config(Config.model_validate(head["config"]))
    rows = _Rows()
    for line in lines:
        table, _, body = line.partition(b" ")
        name = table.decode()
        key, row = rows.read(name, body)
        getattr(state, name).put(key, row)
        if hasher is not None:
            hasher.adopt(name, key, body)
    if hasher is not None:
        hasher.adopted(state)
    state.rebuild_index()
    return state


ROLES = b'"roles":['
AFTER_ROLES = {"jobs": b'],"amount":', "runs": b'],"amount":', "earmarks": b'],"placements":'}
"""What follows the roles of a row. A quote inside a text is escaped and no field of a role is called so."""


class _Rows:
    """Reads rows. Roles are half of each and often the same: equal ones are read once."""

    def __init__(self) -> None:
        self._gangs: dict[bytes, Gang] = {}

    def read(self, name: str, body: bytes) -> tuple[str, Any]:
        """Key and row. Raises KeyError for an unknown table, ValidationError for what is no row of it."""
        adapter, key = ROWS[name]
        if name not in AFTER_ROLES:
            row = adapter.validate_json(body)
            return getattr(row, key), row
        start = body.find(ROLES) + len(ROLES)
        stop = body.find(AFTER_ROLES[name], start)
        gang = self._gangs.get(body[start:stop])
        if gang is None:
            row = adapter.validate_json(body)
            gang = self._gangs[body[start:stop]] = gang_of(row.roles)
        else:
            row = adapter.validate_json(body[:start] + body[stop:])
        object.__setattr__(row, "roles", gang)  # it is nobody else's yet
        return getattr(row, key), row
