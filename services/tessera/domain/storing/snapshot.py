"""
A state as bytes and back. A restored state is trusted only if it hashes to a `checkpoint` record of the ledger.

The form is lines of JSON: first the scalars, then one line per entity, so that it can be cut into chunks anywhere.
"""

from collections.abc import Iterator

import orjson

from tessera.domain.errors import Contradiction
from tessera.domain.folding.device_offers import restore_offers
from tessera.domain.state import State
from tessera.domain.storing.canonical import encode
from tessera.domain.storing.snapshot_rows import ROWS, RowReader
from tessera.domain.storing.statehash import StateHash
from tessera_schemas.config import Config
from tessera_schemas.ledger import FORMAT

SNAPSHOT_VERSION = 1
BATCH = 256


def dump(state: State) -> Iterator[bytes]:
    """The lines of a snapshot."""
    identity = {"ledger_id": state.ledger_id} if state.ledger_id else {}
    numbers = {"last_number": state.last_number} if state.last_number else {}
    yield orjson.dumps(
        identity
        | numbers
        | {
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
    state.ledger_id = str(head.get("ledger_id", ""))
    state.last_number = head.get("last_number", 0)
    state.config = Config.model_validate(head["config"])
    rows, counts = RowReader(), dict.fromkeys(ROWS, 0)
    for name, bodies in _batches(lines):
        read = rows.read(name, bodies)
        keys = getattr(state, name).put_all(read, ROWS[name][1])
        counts[name] += len(bodies)
        if hasher is not None:
            hasher.adopt(name, keys, bodies)
    if twice := [name for name, count in counts.items() if len(getattr(state, name)) != count]:
        raise Contradiction(f"snapshot has a row of {', '.join(twice)} twice: its sums could be anything")
    if hasher is not None:
        hasher.adopted(state)
    state.make_tree()
    restore_offers(state)
    state.rebuild_index()
    return state


def _batches(lines: Iterator[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Rows of one table that stand together, a few at a time: what is done for each costs less side by side."""
    table, bodies = b"", list[bytes]()
    for line in lines:
        name, _, body = line.partition(b" ")
        if name != table or len(bodies) == BATCH:
            if bodies:
                yield table.decode(), bodies
            table, bodies = name, []
        bodies.append(body)
    if bodies:
        yield table.decode(), bodies
