"""A head of the ledger, as whoever keeps one elsewhere writes it down: `N:HASH`."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Head:
    """End of a ledger at some time: message `n`, and the chain hash after it."""

    n: int
    chain: str

    @classmethod
    def parse(cls, text: str) -> "Head":
        """`N:HASH`, as `tessera ledger head` prints it; raises ValueError for anything else."""
        n, _, chain = text.strip().partition(":")
        if not n.isdigit() or not re.fullmatch(r"[0-9a-f]{64}", chain):
            raise ValueError(f"{text!r} is no head; write N:HASH as `tessera ledger head` prints it")
        return cls(int(n), chain)

    def __str__(self) -> str:
        return f"{self.n}:{self.chain}"
