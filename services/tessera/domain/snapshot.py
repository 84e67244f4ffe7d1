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
from tessera.domain.fast import replace
from tessera.domain.gang import gang_of
from tessera.domain.mix import Mix, Seen
from tessera.domain.resources import Node
from tessera.domain.runtimes import Sketch
from tessera.domain.state import State
from tessera_schemas.config import Config

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


def load(lines: Iterator[bytes]) -> State:
    """The state of `dump`; raises Contradiction when the form is not the one this build knows."""
    head = orjson.loads(next(lines, b"{}"))
    if not isinstance(head, dict) or head.get("version") != SNAPSHOT_VERSION:
        raise Contradiction(f"snapshot begins with {str(head)[:100]}, which is not known here")
    state = State()
    state.n, state.chain, state.epoch = head["n"], head["chain"], head["epoch"]
    state.ts, state.format, state.facts_upto = head["ts"], head["format"], head["facts_upto"]
    state.set_config(Config.model_validate(head["config"]))
    for line in lines:
        name, _, body = line.partition(b" ")
        adapter, key = ROWS[name.decode()]
        row = adapter.validate_json(body)
        if isinstance(row, Job | Run | Earmark):
            row = replace(row, roles=gang_of(row.roles))
        getattr(state, name.decode()).put(getattr(row, key), row)
    state.rebuild_index()
    return state
