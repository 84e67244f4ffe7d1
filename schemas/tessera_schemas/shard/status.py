"""Status of a shard: who leads, how old its ledger's end and the oldest unanswered input are, who is ready."""

from pydantic import Field

from tessera_schemas.base import Lenient


class ShardTrouble(Lenient):
    """Something that is wrong, and the way out of it."""

    what: str
    way_out: str

    def line(self) -> str:
        """Sentence for one line of a terminal."""
        return f"{self.what}; {self.way_out}"


class ServiceStatus(Lenient):
    """One live instance of a service; `unwell` are the checks of its `/readyz` that fail, for operators."""

    service: str
    instance: str = ""
    ready: bool = True
    leads: bool = False
    unwell: tuple[tuple[str, str], ...] = ()


class ShardStatus(Lenient):
    """
    A shard at `ts`, by the clock of whoever looked. Of a tenant's view the names of instances and their words are left
    out.
    """

    ts: int
    well: bool = Field(description="Nothing of it is in trouble")
    standstill: str = Field("", description="Why nothing is decided now; empty while the ledger goes on")
    led: bool = Field(description="A scheduler leads")
    leader: str = ""
    ledger_n: int = Field(0, description="The newest record of the ledger")
    ledger_ts: int = Field(
        0, description="When that was decided, by the ledger's time; 0: it is empty or cannot be read"
    )
    waiting_since_ts: int = Field(
        0, description="Since when the oldest command or fact waits that the ledger has not answered; 0: none does"
    )
    views_n: int = Field(0, description="The record up to which lists hold; 0: Redis has none, or is away")
    nats: str = Field("ok", description="Why it does not answer, or `ok`")
    redis: str = "ok"
    services: tuple[ServiceStatus, ...] = ()
    troubles: tuple[ShardTrouble, ...] = ()
