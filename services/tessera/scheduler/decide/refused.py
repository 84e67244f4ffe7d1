"""Facts about work that users made in Kubernetes and that is not taken in: kept for readers, bounded in number."""

from collections.abc import Sequence

from tessera.domain.state import State
from tessera.scheduler.decide.draft import Draft, judges
from tessera_schemas.facts import REFUSED_MAX, REFUSED_PER_TENANT, WorkRefused
from tessera_schemas.ledger import RefusalNoted
from tessera_schemas.reasons import Reason


@judges(WorkRefused)
def on_work_refused(draft: Draft, index: int, fact: WorkRefused) -> None:
    """Noted when it is news. Of a tenant with too many the first are shown, and the next as these are mended."""
    known = draft.state.refused.get(fact.work_id)
    if known is None and (not fact.reasons or _is_full(draft.state, fact.tenant)):
        return
    if known is None or (known.tenant == fact.tenant and _codes(known.reasons) != _codes(fact.reasons)):
        draft.add(RefusalNoted(kind="refusal_noted", fact=index))


def _is_full(state: State, tenant: str) -> bool:
    of_tenant = sum(work.tenant == tenant for work in state.refused.values())
    return of_tenant >= REFUSED_PER_TENANT or len(state.refused) >= REFUSED_MAX


def _codes(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    """Numbers change with each look."""
    return [(reason.code, reason.field) for reason in reasons]
