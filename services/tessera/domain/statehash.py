"""
The incremental hash of a state: two states hash equal when they hold equal entities.

Each entity's digest is added modulo 2**128 to its table's sum, so a change costs one digest and the order of changes
does not matter. Only entities written since the last call are digested.
"""

import hashlib
from typing import Any

import orjson
from pydantic import BaseModel

from tessera.domain.state import TABLES, State

MODULUS = 1 << 128


def encode(entity: Any) -> bytes:
    """The canonical bytes of an entity: compact JSON, fields in declared order."""
    return orjson.dumps(entity, default=_embed)


def _embed(value: Any) -> orjson.Fragment:
    if isinstance(value, BaseModel):
        return orjson.Fragment(value.__pydantic_serializer__.to_json(value))
    raise TypeError(f"{type(value).__name__} has no canonical form")


class StateHash:
    """Follows one state; `of` brings it up to date. Contracts: one StateHash per state, called with that state only."""

    def __init__(self) -> None:
        self._digests: dict[str, dict[str, int]] = {name: {} for name in TABLES}
        self._sums: dict[str, int] = dict.fromkeys(TABLES, 0)

    def of(self, state: State) -> str:
        """The hash of `state` as it is now, 64 hexadecimal characters."""
        for name in TABLES:
            self._refresh(name, getattr(state, name))
        scalars = [state.n, state.chain, state.epoch, state.ts, state.format, state.facts_upto]
        whole = [*scalars, state.config.model_dump_json(), *(f"{self._sums[name]:032x}" for name in TABLES)]
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
