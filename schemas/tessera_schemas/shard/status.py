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
    well: bool = Field(description="Whether no part of the shard is in trouble")
    standstill: str = Field("", description="Reason why no decisions are made now; empty while the ledger goes on")
    led: bool = Field(description="Whether a scheduler leads")
    leader: str = ""
    ledger_n: int = Field(0, description="Newest ledger number")
    ledger_ts: int = Field(0, description="Ledger time of the newest record; 0: the ledger is empty or unreadable")
    waiting_since_ts: int = Field(
        0, description="Arrival of the oldest command or fact not yet answered by the ledger; 0: none waits"
    )
    views_n: int = Field(0, description="Ledger number up to which listings hold; 0: Redis has none, or is away")
    nats: str = Field("ok", description="Error of the NATS server, or `ok`")
    redis: str = "ok"
    services: tuple[ServiceStatus, ...] = ()
    troubles: tuple[ShardTrouble, ...] = ()
    notes: tuple[str, ...] = Field((), description="What operators should know, and is no trouble")
