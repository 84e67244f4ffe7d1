"""Start of one job: the choice between flavors, by quota and by room. The committer decides by it."""

from collections.abc import Callable

from tessera.domain.devices.levels import in_short
from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Job
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.engine.queueing.readiness import quota_reason
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

Choice = tuple[str, tuple[Placement, ...]]
"""A flavor and where on its nodes the gang goes."""

Place = Callable[[tuple[RoleNeed, ...], str, tuple[str, ...]], tuple[Placement, ...] | Reason]
"""Places a gang on the nodes of a flavor, some nodes left out; or says why not."""


def choose(tree: QueueTree, book: QuotaBook, job: Job, place: Place) -> Choice | Reason:
    """
    The first flavor that has quota and room, those first where the queue need not borrow; or why none has.

    Nodes that failed the job before are left out while there is room elsewhere.
    """
    flavors = tree.flavors_for(job.queue, job.amount)
    if len(flavors) > 1:
        # Own quota first: what is borrowed may be taken back, and its owner would evict the job for it.
        flavors = tuple(sorted(flavors, key=lambda f: (book.borrows(job.queue, f, job.amount), flavors.index(f))))
    reasons: list[Reason] = []
    for flavor in flavors:
        over = book.lacks(job, flavor)
        found = quota_reason(over) if over else _placed(job, flavor, place)
        if not isinstance(found, Reason):
            return flavor, found
        reasons.append(found)
    # Want of room is told before want of quota: it says what is still missing where quota is there.
    first = next((reason for reason in reasons if reason.code is not Code.WAITING_FOR_QUOTA), reasons[0])
    return in_short(first, tree.levels)


def refusal(
    tree: QueueTree, book: QuotaBook, job: Job, refused: Callable[[tuple[RoleNeed, ...], str], Code | None]
) -> Code | None:
    """
    The code of the reason that `choose` would give; None when a flavor has quota and may have room.

    Where a gang finds no place on all nodes, it finds none without those to avoid.
    """
    codes = set[Code]()
    for flavor in tree.flavors_for(job.queue, job.amount):
        if book.lacks(job, flavor) is None:
            code = refused(job.roles, flavor)
            if code is None:
                return None
            codes.add(code)
    if len(codes) > 1:
        return None  # the flavor that goes first decides
    return codes.pop() if codes else Code.WAITING_FOR_QUOTA


def _placed(job: Job, flavor: str, place: Place) -> tuple[Placement, ...] | Reason:
    # In two steps and not as a preference in the score: nodes that failed the job are taken only where nothing else
    # holds all of it.
    if job.avoid:
        found = place(job.roles, flavor, job.avoid)
        if not isinstance(found, Reason):
            return found
    return place(job.roles, flavor, ())
