"""The consequences of an order for whoever means to give it: tenants see no name that is not theirs."""

from dataclasses import asdict

from tessera.domain.state import State
from tessera.engine.explain.blockers import Viewer
from tessera.engine.explain.consequences import StoppedRun, TriedOrder, consequences
from tessera.gateway.entrance.problems import all_of
from tessera.gateway.operations.models import ExceededPromise, StoppedWork, ToldConsequences
from tessera.gateway.reading.bookings import booking_fault
from tessera_schemas.commands import ReserveNodes

SHOWN_MAX = 100
NAMES = ("job_id", "run_id", "name", "tenant", "queue")


def told_consequences(state: State, order: TriedOrder, tenant: str | None, now_ms: int) -> ToldConsequences:
    """Consequences of the order as `tenant`, None an operator, may see them. Raises Refusal for one that cannot be."""
    if isinstance(order, ReserveNodes) and (against := booking_fault(state, order, now_ms)):
        raise all_of([against])
    found, viewer = consequences(state, order, now_ms), Viewer(state.tree, tenant)
    return ToldConsequences(
        as_of=state.n,
        sentences=tuple(found.words(viewer)),
        runs=len(found.stopped),
        gpu_milli=sum(each.gpu_milli for each in found.stopped),
        lost_gpu_seconds=found.lost_gpu_ms // 1000,
        at_least=found.more,
        stopped=tuple(_shown(each, viewer) for each in found.stopped[:SHOWN_MAX]),
        promises=tuple(ExceededPromise.model_validate(asdict(promise)) for promise in found.promises),
    )


def _shown(each: StoppedRun, viewer: Viewer) -> StoppedWork:
    known = {**asdict(each), "lost_gpu_seconds": each.lost_gpu_ms // 1000, "code": each.code.value}
    hidden = {} if viewer.may_see(each.tenant) else dict.fromkeys(NAMES, "")
    return StoppedWork.model_validate({**known, **hidden})
