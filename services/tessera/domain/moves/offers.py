"""Offers of moves, as the state keeps them: one of each run at most, with its answer. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init
from tessera.domain.table import Table


@fast_init
@dataclass(frozen=True, slots=True)
class OfferedMove:
    """
    Offer to a run to move for job `owner`, answered by `deadline`; `how` is "" and `answered_ts` 0 until it is.

    `moves`: the run agrees, if only by its silence. `gain` are the GPU seconds that all moves of the plan were to gain
    beyond what they lose. An offer ends with its run; one that was turned down stands until the run is asked again.
    """

    run_id: str
    owner: str
    offered_ts: int
    deadline: int
    gain: int
    how: str = ""
    moves: bool = False
    answered_ts: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the answer is still to come."""
        return not self.how

    @property
    def is_refused(self) -> bool:
        """Whether the run stays."""
        return bool(self.how) and not self.moves


OfferedMoves = Table[OfferedMove]


@fast_init
@dataclass(frozen=True, slots=True)
class MovedRuns:
    """Number of a tenant's runs that were moved in a week, and the GPU seconds that they lost by it."""

    tenant: str
    week: int
    moves: int = 0
    lost_gpu_seconds: int = 0

    def counting(self, week: int, moves: int, lost: int) -> "MovedRuns":
        """The row with more, or less, in a week; what was in another week counts no more."""
        before = self if self.week == week else MovedRuns(self.tenant, week)
        return MovedRuns(self.tenant, week, max(0, before.moves + moves), max(0, before.lost_gpu_seconds + lost))


def offers_for(offers: OfferedMoves, owner: str) -> list[OfferedMove]:
    """Offers for a waiting job that are open or agreed to, by run."""
    return sorted(_standing(offers.values(), owner), key=lambda offer: offer.run_id) if len(offers) else []


def _standing(offers: Iterable[OfferedMove], owner: str) -> Iterable[OfferedMove]:
    return (offer for offer in offers if offer.owner == owner and not offer.is_refused)
