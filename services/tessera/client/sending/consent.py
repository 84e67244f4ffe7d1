"""Consequences before consent: what an order would do is said, and asked about on a terminal, before it is sent."""

import sys
from typing import TYPE_CHECKING

import typer

from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.views.rendering import notify
from tessera.kernel.errors import Transient
from tessera_schemas.base import Strict

if TYPE_CHECKING:
    from tessera.gateway.operations.models import ToldConsequences


async def find_consequences(views: ShardViews, command: Strict) -> "ToldConsequences | None":
    """What the order would do; None where the gateway refuses to say it, or says nothing, which is said."""
    try:
        return await views.consequences(command)
    except (Refused, Failure, Transient) as error:
        notify(f"what this would do is not known: {error}")
        return None


async def ask_first(
    where: Where, identity: str | None, command: Strict, yes: bool = False, strict: bool = False
) -> None:
    """
    Say on stderr what the order would do, and ask on a terminal if it stops somebody or promises too much.

    Without a terminal, or with `yes`, it goes on. Raises Failure where the answer is no; with `strict` also whatever
    is against the order, where it otherwise goes on and says that the consequences are not known.
    """
    try:
        views = views_of(where, identity)
        found = await (views.consequences(command) if strict else find_consequences(views, command))
    except Failure as error:  # no gateway is known here: orders by a whole id need none
        if strict:
            raise
        found = None
        notify(f"what this would do is not known: {error}")
    for sentence in () if found is None else found.sentences:
        notify(sentence)
    harmless = found is None or not (found.runs or found.promises)
    if not (yes or harmless) and sys.stdin.isatty() and not typer.confirm("Go on?", err=True):
        raise Failure(Exit.FAILED, "nothing was sent")
