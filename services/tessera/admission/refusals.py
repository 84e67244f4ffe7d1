"""
A bound on refusals that become records: so many per second and tenant, and one count of all the others.

Answers are sent for each. A count that its replica could not publish before it died is lost: it is audit, not effect.
"""

from dataclasses import dataclass

from tessera.kernel.messaging.rates import MILLION, TokenBucket
from tessera.kernel.ports import Clock
from tessera_schemas.facts import JobRefused

FLUSH_SECONDS = 1.0
COUNTED_REASONS_MAX = 2
"""Of the newest, in a count: sent every second for ever, it has to stay small."""


@dataclass(frozen=True, slots=True)
class Counted:
    """`count` refusals of one tenant, told by the newest of them; `identity` is the same for the same refusals."""

    newest: JobRefused
    count: int
    first: str
    last: str

    def fact(self) -> JobRefused:
        """Fact for all of the refusals: the newest one, how many more there were, and its first reasons."""
        reasons = self.newest.reasons[:COUNTED_REASONS_MAX]
        return self.newest.model_copy(update={"repeats": self.count - 1, "reasons": reasons})

    @property
    def identity(self) -> str:
        """Name that is the same for the same refusals: from the first of them to the last."""
        return f"{self.first}..{self.last}"


class Refusals:
    """A token bucket per tenant, and what did not get through it."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock, self._per_second = clock, per_second
        self._buckets: dict[str, TokenBucket] = {}
        self._counted: dict[str, Counted] = {}

    def recorded(self, tenant: str) -> bool:
        """Whether one more refusal of the tenant gets a record of its own."""
        bucket = self._buckets.setdefault(tenant, TokenBucket(self._per_second, self._per_second))
        return bucket.take(self._now_us()) == 0

    def count(self, refused: JobRefused, identity: str) -> None:
        """One more that has no record of its own."""
        self._add(Counted(refused, 1, identity, identity))

    def take(self) -> list[Counted]:
        """Take the counts since the last call; tenants without any are forgotten."""
        taken, self._counted = list(self._counted.values()), {}
        now_us, quiet_us = self._now_us(), int(FLUSH_SECONDS * MILLION)
        self._buckets = {tenant: b for tenant, b in self._buckets.items() if now_us - b.filled_at_us < quiet_us}
        return taken

    def put_back(self, taken: list[Counted]) -> None:
        """Put back counts that could not be published, beneath those counted meanwhile."""
        newer, self._counted = self._counted, {}
        for counted in (*taken, *newer.values()):
            self._add(counted)

    def _now_us(self) -> int:
        return int(self._clock.monotonic() * MILLION)

    def _add(self, more: Counted) -> None:
        tenant = more.newest.tenant
        old = self._counted.get(tenant)
        if old is not None:
            more = Counted(more.newest, old.count + more.count, old.first, more.last)
        self._counted[tenant] = more
