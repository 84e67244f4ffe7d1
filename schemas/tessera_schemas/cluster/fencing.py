"""
Fencing of lost and sick nodes by a webhook that turns machines off: its configuration, facts and records.

A node that does not answer keeps the GPUs of its stopped runs, since it may still compute. Whoever has its power can
end that: a baseboard controller (Redfish), or a cloud that terminates the instance. A sick node whose kubelet answers
may keep them as well, where a driver that hangs lets no pod end.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tessera_schemas.base import Count, NodeName, Positive, Strict, Text, later
from tessera_schemas.cluster.health import HealthCause
from tessera_schemas.events import NodeFenceAskedV1, NodeFenceEndedV1
from tessera_schemas.shard.records import AnyFact, AnyRecord, PoolTold

FenceRequest = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{20}$")]
"""Identity of one request to turn a node off, and the idempotency key of each call for it."""
FENCED_WITHIN_MS = 3_600_000
"""For how long a fenced node counts against `at_most_percent`."""


class Fencing(Strict):
    """
    Webhook that turns off nodes that are lost, or so sick that `health` asks for it: what ran there restarts elsewhere
    without a person.

    The secret that signs each request is known to reclamation alone. The URL is not secret: it stands in the ledger.
    """

    url: Annotated[
        str,
        StringConstraints(pattern=r"^https?://[^\s@#]{1,1000}$"),
        Field(description="URL that is asked to turn a node off, and confirms it"),
    ]
    after_seconds: Annotated[
        Count,
        Field(
            le=86_400,
            description="Seconds beyond `policy.node_lost_seconds` before the webhook is called for a silent node, and "
            "from its drain on for a sick one",
        ),
    ] = 60
    timeout_seconds: Annotated[
        Positive, Field(le=86_400, description="Seconds within which the webhook has to confirm that the node is off")
    ] = 300
    at_most_percent: Annotated[
        Positive,
        Field(le=100, description="Percentage of a pool's nodes that may be fenced within an hour; one always may"),
    ] = 10


FencingWebhook = Annotated[Fencing | None, Field(description="Webhook that turns lost and sick nodes off; null: none")]


class FenceDue(AnyFact, sender="reclamation"):
    """
    A node has not answered for so long that it should be turned off: stopped runs still hold something there.

    sick: it is to be turned off for its health, whether it answers or not, and was out for it for `seconds`.
    """

    kind: Literal["fence_due"]
    node: NodeName
    seconds: Count
    sick: bool = later(False)


class FenceAnswered(AnyFact, sender="reclamation"):
    """
    End of a request, as `detail` says. off: the webhook confirmed that nothing runs on the node. failed: it refused,
    or did not confirm in time.
    """

    kind: Literal["fence_answered"]
    node: NodeName
    request: FenceRequest
    outcome: Literal["off", "failed"]
    detail: Text = ""


class FenceAsked(AnyRecord, event=NodeFenceAskedV1):
    """
    The webhook is to turn a lost node off, or for its health one with this `cause`; every call for it bears the key
    `request`.
    """

    kind: Literal["fence_asked"]
    node: NodeName
    request: FenceRequest
    why: Text
    by: Text = ""
    pool: PoolTold = ""
    cause: HealthCause | None = later(None)


class FenceEnded(AnyRecord, event=NodeFenceEndedV1):
    """
    End of a request. off: nothing runs on the node, and the binder puts it out of service. failed: the GPUs stay held.

    back: the node answered first, or its health asks for it no more. gone: its object was taken away. undone: an
    operator took the request back.
    """

    kind: Literal["fence_ended"]
    node: NodeName
    request: FenceRequest
    outcome: Literal["off", "failed", "back", "gone", "undone"]
    detail: Text = ""
    by: Text = ""
    pool: PoolTold = ""
