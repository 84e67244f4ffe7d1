"""
The incremental hash of a state: two states hash equal when they hold equal entities.

Each entity's digest is added modulo 2**128 to its table's sum, so a change costs one digest and the order of changes
does not matter. Only entities written since the last call are digested.

The form is that of 0.3 for every state that 0.3 could have had, so that the checkpoints of its ledgers hold: what came
later is left out while it has its default (`later` of entities, `exclude_if` of models) or while its table is empty.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from tessera.domain.state import LATER_TABLES, TABLES, State
from tessera.domain.storing.canonical import encode
from tessera.domain.work.ended_jobs import EndedJobs
from tessera_schemas.config import Config

MODULUS = 1 << 128
ENDED = "ended"
"""The table whose rows' digests are not kept."""


class StateHash:
    """Follows one state; `of` brings it up to date. Contracts: one StateHash per state, called with that state only."""

    def __init__(self) -> None:
        self._digests: dict[str, dict[str, int]] = {name: {} for name in TABLES}
        self._sums: dict[str, int] = dict.fromkeys(self._digests, 0)
        self._config: tuple[Config, str] | None = None  # the last one, which seldom changes, and its JSON

    def of(self, state: State) -> str:
        """The hash of `state` as it is now, 64 hexadecimal characters."""
        for name in TABLES:
            self._refresh(name, getattr(state, name))
        scalars = [state.n, state.chain, state.epoch, state.ts, state.format, state.facts_upto]
        first = (f"{self._sums[name]:032x}" for name in TABLES if name not in LATER_TABLES)
        used = (f"{name} {self._sums[name]:032x}" for name in TABLES if name in LATER_TABLES and self._digests[name])
        if self._config is None or self._config[0] is not state.config:
            self._config = state.config, state.config.model_dump_json()
        identity = [f"ledger {state.ledger_id}"] if state.ledger_id else []
        numbers = [f"last number {state.last_number}"] if state.last_number else []
        whole = [*scalars, self._config[1], *first, *used, *identity, *numbers]
        return hashlib.sha256(orjson.dumps(whole)).hexdigest()

    def adopt(self, name: str, keys: Sequence[str], encoded: Sequence[bytes]) -> None:
        """
        Count rows of a restored state by the canonical bytes that they were read from.

        `adopted` follows once all rows are in. Raises KeyError for an unknown table.
        """
        digests = [_digest_of(key, row) for key, row in zip(keys, encoded, strict=True)]
        self._sums[name] = (self._sums[name] + sum(digests)) % MODULUS
        if name != ENDED:
            self._digests[name].update(zip(keys, digests, strict=True))

    def adopted(self, state: State) -> None:
        """All that `state` holds was counted by `adopt`: nothing of it needs a digest before it is written again."""
        for name in TABLES:
            getattr(state, name).written.clear()

    def _refresh(self, name: str, table: Any) -> None:
        total = self._sums[name]
        if isinstance(table, EndedJobs):
            total += _sum_of_ended(table)
        else:
            digests = self._digests[name]
            for key in table.written:
                total -= digests.pop(key, 0)
                row = table.get(key)
                if row is not None:
                    digests[key] = _digest(key, row)
                    total += digests[key]
        self._sums[name] = total % MODULUS
        table.written.clear()


def _sum_of_ended(table: EndedJobs) -> int:
    """Change of the sum. No digest is kept for millions of rows: the digest of a row that is gone is computed again."""
    written = [(key, row) for key in table.written if (row := table.get(key)) is not None]
    change = sum(_digest(key, row) for key, row in written) - sum(_digest(row.job_id, row) for row in table.gone)
    table.gone.clear()
    return change


def _digest(key: str, row: Any) -> int:
    return _digest_of(key, encode(row))


def _digest_of(key: str, encoded: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode() + b"\x00" + encoded, digest_size=16).digest(), "big")
