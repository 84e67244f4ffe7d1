"""
Disruption budgets of the simulated cluster, by `matchLabels` alone.

No controller follows what is healthy: whoever makes a budget writes `status.disruptionsAllowed`, and each eviction
takes one of it, as the API server does until the controller has counted again.
"""

from collections.abc import Iterable

from tessera.kernel.ports import ApiError
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.base import Json

FORBIDDEN = "Cannot evict pod as it would violate the pod's disruption budget."


def protecting(pod: Version, budgets: Iterable[Version]) -> list[Version]:
    """The budgets of a pod. Raises ApiError 429 when one of them allows no disruption."""
    mine = [each for each in budgets if _selects(each, pod)]
    if any(_allowed(each) < 1 for each in mine):
        raise ApiError(429, "TooManyRequests", FORBIDDEN)
    return mine


def used(budget: Version) -> Json:
    """The budget with one disruption less."""
    status = (budget.object.get("status") or {}) | {"disruptionsAllowed": _allowed(budget) - 1}
    return {**budget.object, "metadata": dict(budget.meta), "status": status}


def _allowed(budget: Version) -> int:
    return int((budget.object.get("status") or {}).get("disruptionsAllowed", 0))


def _selects(budget: Version, pod: Version) -> bool:
    wanted = (budget.object["spec"].get("selector") or {}).get("matchLabels") or {}
    there = budget.meta["namespace"] == pod.meta["namespace"]
    return there and bool(wanted.items() <= pod.labels.items())
