"""
What stops when a service stops: the facts that `test_each_service_alone` shows on real processes.

That of the notifier is shown in `tests/integration/test_webhooks.py`. docs/architecture.md holds the same table; a row
here without its test, or a row there that is not here, is a mistake.
"""

from typing import NamedTuple


class Death(NamedTuple):
    """`writes` is what nobody else may write; `stops` is all that stops; `goes_on` is what a reader may doubt."""

    writes: str
    stops: str
    goes_on: str


DEATHS = {
    "admission": Death(
        writes="facts: job admitted or refused, cancel, configuration",
        stops="submits and cancels are stored, but not answered",
        goes_on="admitted jobs start, run, end and release",
    ),
    "queueing": Death(
        writes="orders: who is next in each pool",
        stops="jobs are admitted, but none that is not in line yet starts",
        goes_on="what is in line starts; what runs ends and releases",
    ),
    "scheduler": Death(
        writes="the ledger",
        stops="nothing is decided; a standby takes over when there is one",
        goes_on="pods run to their end; submits are answered; facts wait",
    ),
    "binder": Death(
        writes="pods; facts: made, bound, started, ended, node changed",
        stops="allocated runs get no pods, and no start or end is seen",
        goes_on="jobs are admitted and allocated; running pods run to their end",
    ),
    "preemption": Death(
        writes="plans: whom to evict, or to shrink, for a waiting job",
        stops="nobody is evicted for a job of the same queue, and elastic runs keep their size",
        goes_on="jobs are admitted, start on what is free, end and release",
    ),
    "reclamation": Death(
        writes="facts: run absent",
        stops="ended and revoked runs keep their devices",
        goes_on="jobs start and run on what is free, and their ends are recorded",
    ),
    "projection": Death(
        writes="Redis, the public events, snapshots",
        stops="no new events; views stay as of the n they say",
        goes_on="jobs are admitted, start, end and release",
    ),
    "notifier": Death(
        writes="signed requests to the webhooks of tenants",
        stops="no webhook gets events",
        goes_on="events wait in their stream and are delivered when it is back; nothing else notices",
    ),
    "gateway": Death(
        writes="commands, for the tenant of a token",
        stops="no HTTP requests and no streams of events",
        goes_on="clients on NATS submit and subscribe; everything that was submitted goes on",
    ),
}
