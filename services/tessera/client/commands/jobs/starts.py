"""Expected starts of waiting jobs, as the gateway has them, or for an operator without one as the ledger has them."""

from contextlib import suppress
from typing import TYPE_CHECKING

from tessera.client.connect.api import Api
from tessera.client.outcomes import Failure, Refused
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.subjects import OPERATOR

if TYPE_CHECKING:
    from tessera.client.connect.where import Where
    from tessera.gateway.operations.models import LineStart


async def starts_by_gateway(where: "Where", identity: str | None = None) -> "dict[str, LineStart] | None":
    """Expected starts by job id, of those whose start is known; None where no gateway answers whoever asks."""
    from tessera.gateway.operations.models import QueueLine

    by_token = where.login is not None and identity is None
    api = where.api if by_token else None
    if api is None and where.gateway is not None and identity in (None, OPERATOR):
        api = Api(where.gateway)
    if api is None:
        return None
    with suppress(Failure, Refused, Transient):
        line = QueueLine.model_validate(await api.get("/v1/line"), extra="ignore")
        return {place.job_id: place.expected_start for place in line.items if place.job_id and place.expected_start}
    return None


async def expected_starts_of(where: "Where", identity: str | None = None) -> "dict[str, LineStart]":
    """The same; for an operator whom no gateway answers, by a fold of the ledger. Raises Failure for others."""
    found = await starts_by_gateway(where, identity)
    if found is not None:
        return found
    from tessera.client.ledger.reading import stored_ledger
    from tessera.gateway.reading.explaining import known_starts

    async with stored_ledger(where, identity) as ledger:
        state, now_ms = (await ledger.folded()).state, SystemClock().now_ms()
    pools = sorted(state.tree.queues_of)
    return {job_id: start for pool in pools for job_id, start in known_starts(state, pool, now_ms).items()}
