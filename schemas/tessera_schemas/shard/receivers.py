"""Receivers of a tenant's events, as the configuration names them: durable subscribers, and webhooks."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tessera_schemas.base import Name, Strict, later

EventType = Annotated[str, StringConstraints(pattern=r"^[a-z.-]+\.v[0-9]+$")]
"""Type of an event as filters say it, such as `job.allocated.v1`."""


class Subscriber(Strict):
    """A durable subscriber of a tenant's events, made by `apply`; `types` such as `job.allocated.v1`, empty: all."""

    name: Annotated[Name, Field(description="Name of the subscriber")]
    types: Annotated[tuple[EventType, ...], Field(max_length=32, description="Event types to deliver; empty: all")] = ()
    begin: Annotated[
        Literal["oldest", "new"],
        Field(description="First event at creation: `oldest` still kept, or only `new` ones; cannot be changed later"),
    ] = later("oldest")


class Webhook(Strict):
    """
    Delivery of a tenant's events by HTTP: a signed POST of each event. A webhook that is made begins with new events.

    The secret itself is known to the notifier alone. The URL is not secret: it stands in the ledger.
    """

    name: Annotated[Name, Field(description="Name of the webhook, unique within the tenant")]
    url: Annotated[
        str, StringConstraints(pattern=r"^https?://[^\s@#]{1,1000}$"), Field(description="URL that receives the events")
    ]
    secret: Annotated[Name, Field(description="Name of the tenant's secret that signs each request")]
    types: Annotated[
        tuple[EventType, ...],
        Field(max_length=32, description="Event types, such as `job.failed.v1`; empty: all"),
    ] = ()
    queues: Annotated[tuple[Name, ...], Field(max_length=32, description="Queues of the jobs; empty: all")] = ()
