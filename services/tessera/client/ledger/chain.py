"""The chain of a ledger, message by message: where it stands, and what is wrong where it breaks."""

from collections import Counter
from dataclasses import dataclass

import orjson

from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import Head, chain_hash


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """One message as a person looks at it."""

    n: int
    ts: int
    epoch: int
    engine: str
    policy: int
    tx: str
    facts_upto: int
    facts: int
    size_bytes: int
    records: str

    @classmethod
    def of(cls, data: bytes) -> "ChainEntry":
        """Raises ValueError, KeyError or TypeError for bytes that are no ledger message."""
        raw = orjson.loads(data)
        kinds = Counter(record["kind"] for record in raw.get("records", ()))
        return cls(
            int(raw["n"]),
            int(raw["ts"]),
            int(raw["epoch"]),
            str(raw["engine"]),
            int(raw["policy"]),
            str(raw["tx"]),
            int(raw.get("facts_upto", 0)),
            len(raw.get("facts", ())),
            len(data),
            ", ".join(kind if count == 1 else f"{kind} ×{count}" for kind, count in kinds.items()),
        )


class ChainWalk:
    """Feed it every message from the first; `broken` says what is wrong at the first place that is."""

    def __init__(self, after: Head | None = None) -> None:
        """`after` is where the walk begins, the beginning of the ledger when left out."""
        self.n = after.n if after else 0
        self.epoch = 0
        self.broken = ""
        self._chain = after.chain if after else GENESIS

    def step(self, seq: int, data: bytes) -> None:
        """The next stored message; after a break nothing is looked at any more."""
        if self.broken:
            return
        try:
            raw = orjson.loads(data)
            n, prev, epoch = int(raw["n"]), str(raw["prev"]), int(raw["epoch"])
        except (ValueError, KeyError, TypeError) as error:
            self.broken = f"message {seq} is no ledger message ({error!r}): something else wrote to the ledger"
            return
        if n != self.n + 1 or seq != n:
            self.broken = f"gap: after {self.n} comes {n}, stored as {seq}; restore what is missing"
        elif prev != self._chain:
            self.broken = f"fork: message {n} does not continue {n - 1}; another process wrote one of the two"
        elif epoch < self.epoch:
            self.broken = f"message {n}: epoch {epoch} after {self.epoch}; an older committer wrote it"
        else:
            self.n, self.epoch, self._chain = n, epoch, chain_hash(prev, data)

    @property
    def chain(self) -> str:
        """Hash of the chain at the last message that was walked; GENESIS before the first."""
        return self._chain
