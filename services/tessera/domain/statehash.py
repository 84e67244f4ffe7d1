"""
The incremental hash of a state: two states hash equal when they hold equal entities.

Each entity's digest is added modulo 2**128 to its table's sum, so a change costs one digest and the order of changes
does not matter. Only entities written since the last call are digested.

The form is that of 0.3 for every state that 0.3 could have had, so that the checkpoints of its ledgers hold: what came
later is left out while it has its default (`later` of entities, `exclude_if` of models) or while its table is empty.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import orjson
from pydantic import BaseModel

from tessera.domain.evolve import LATER
from tessera.domain.gang import Gang
from tessera.domain.state import LATER_TABLES, TABLES, State

MODULUS = 1 << 128


def encode(entity: Any) -> bytes:
    """The canonical bytes of an entity: compact JSON, fields in declared order, later ones without their defaults."""
    data = orjson.dumps(entity, default=_embed)
    kind: Any = type(entity)
    for unused in _unused(kind):
        data = data.replace(unused, b"}")
    return data


@cache
def _unused(kind: type[Any]) -> tuple[bytes, ...]:
    """
    The ends of objects to leave out, of this type and all within it, the field that came last first.

    Quotes inside a string are escaped, so that these bytes stand nowhere but at the end of an object.
    """
    return tuple(
        b',"%s":%s}' % (each.name.encode(), orjson.dumps(each.default, default=_embed))
        for part in _parts(kind)
        for each in reversed(fields(part))
        if each.metadata.get(LATER)
    )


def _parts(kind: Any) -> Iterator[type[Any]]:
    """The dataclasses that a type is made of, itself included."""
    if is_dataclass(kind):
        yield kind  # type: ignore[misc]  # a type, never an instance
        for hint in get_type_hints(kind).values():
            yield from _parts(hint)
    for inner in get_args(kind):
        yield from _parts(inner)


def _embed(value: Any) -> orjson.Fragment | tuple[Any, ...]:
    if isinstance(value, Gang):
        return tuple(value)
    if isinstance(value, BaseModel):
        return orjson.Fragment(value.__pydantic_serializer__.to_json(value))
    raise TypeError(f"{type(value).__name__} has no canonical form")


class StateHash:
    """Follows one state; `of` brings it up to date. Contracts: one StateHash per state, called with that state only."""

    def __init__(self) -> None:
        self._digests: dict[str, dict[str, int]] = {name: {} for name in TABLES}
        self._sums: dict[str, int] = dict.fromkeys(self._digests, 0)

    def of(self, state: State) -> str:
        """The hash of `state` as it is now, 64 hexadecimal characters."""
        for name in TABLES:
            self._refresh(name, getattr(state, name))
        scalars = [state.n, state.chain, state.epoch, state.ts, state.format, state.facts_upto]
        first = (f"{self._sums[name]:032x}" for name in TABLES if name not in LATER_TABLES)
        used = (f"{name} {self._sums[name]:032x}" for name in TABLES if name in LATER_TABLES and self._digests[name])
        whole = [*scalars, state.config.model_dump_json(), *first, *used]
        return hashlib.sha256(orjson.dumps(whole)).hexdigest()

    def _refresh(self, name: str, table: Any) -> None:
        digests, total = self._digests[name], self._sums[name]
        for key in table.written:
            total -= digests.pop(key, 0)
            row = table.get(key)
            if row is not None:
                digest = hashlib.blake2b(key.encode() + b"\x00" + encode(row), digest_size=16).digest()
                digests[key] = int.from_bytes(digest, "big")
                total += digests[key]
        self._sums[name] = total % MODULUS
        table.written.clear()
