"""
Whether pods of users can all be evicted, asked before the first of them is: half a gang evicted helps nobody.

A dry run of the Eviction API knows every rule there is, but dry runs do not add up. So what each PodDisruptionBudget
allows is counted as well, where budgets may be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.binder.workloads.reading import items, mapping, no, number_in, selects, text, whole
from tessera.binder.workloads.references import controller_of
from tessera.kernel.ports import ApiError, Cluster
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

NOT_THERE = (403, 404, 409)  # no right to read budgets; the pod went or changed, and nothing keeps it


@dataclass(frozen=True, slots=True)
class EvictionBlock:
    """The budget that forbids an eviction, and the pods that it protects."""

    reason: Reason
    uids: frozenset[str]


async def find_eviction_block(cluster: Cluster, pods: Sequence[Json]) -> EvictionBlock | None:
    """
    Why not all of these pods can be evicted now; None when they can. Raises ApiError, Transient.

    Budgets are followed with a delay, and others evict too: so it is asked again right before.
    """
    for namespace in sorted({text(pod, "metadata", "namespace") for pod in pods}):
        there = [pod for pod in pods if text(pod, "metadata", "namespace") == namespace]
        # Budgets are counted before dry runs: one list of a namespace answers for all of its pods, and dry runs of
        # several pods say yes each, although a budget allows only one of them.
        found = find_exhausted_budget(await _budgets(cluster, namespace), there)
        if found is not None:
            return found
    for pod in pods:
        found = await _dry_run(cluster, pod)
        if found is not None:
            return found
    return None


def find_exhausted_budget(budgets: Sequence[Json], pods: Sequence[Json]) -> EvictionBlock | None:
    """The first budget, by name, that allows fewer disruptions than these pods are; or two budgets for one pod."""
    kept: dict[str, str] = {}
    for budget in sorted(budgets, key=lambda each: text(each, "metadata", "name")):
        name = text(budget, "metadata", "name")
        ready = [pod for pod in pods if protects(budget, pod) and _is_ready(pod)]
        allowed = whole(budget, "status", "disruptionsAllowed") or 0
        uids = frozenset(text(pod, "metadata", "uid") for pod in ready)
        if len(ready) > allowed:
            return EvictionBlock(_blocked(f"budget {name}", pods=len(ready), disruptions_allowed=allowed), uids)
        # Kubernetes refuses to evict a pod that two budgets select, whatever they allow.
        twice = next((uid for uid in sorted(uids) if uid in kept), "")
        if twice:
            return EvictionBlock(
                _blocked(f"budgets {kept[twice]} and {name} select the same pod, so that nobody may evict it"),
                frozenset({twice}),
            )
        kept |= dict.fromkeys(uids, name)
    return None


def find_forbidding_budget(budgets: Sequence[Json], metadata: Sequence[Json]) -> str:
    """The budget that lets no pod of this metadata go, however many are well, with its word; "" for none."""
    named = ({**each, "uid": str(rank)} for rank, each in enumerate(metadata))
    pods: list[Json] = [{"metadata": each, "status": {"phase": "Running"}} for each in named]
    namespaces = {text(each, "namespace") for each in metadata}
    # Judged as if all were well: of pods that wait no budget lets any go yet, whatever it says.
    well: list[Json] = []
    for budget in (each for each in budgets if text(each, "metadata", "namespace") in namespaces):
        word = _word_against(budget, [pod for pod in pods if protects(budget, pod)])
        meta = {"name": text(budget, "metadata", "name") + (f" ({word})" if word else "")}
        status = {"disruptionsAllowed": 0 if word else len(pods)}
        well.append({"metadata": meta, "spec": budget.get("spec"), "status": status})
    found = find_exhausted_budget(well, pods)
    return "" if found is None else found.reason.detail


def _word_against(budget: Json, pods: Sequence[Json]) -> str:
    """The word of a budget that keeps it from letting any go, `pods` of which it selects; "" for none."""
    spec, status = mapping(budget, "spec"), mapping(budget, "status")
    field = "maxUnavailable" if "maxUnavailable" in spec else "minAvailable"
    given, count = spec.get(field), max(len(pods), whole(status, "expectedPods") or 0)
    percent = number_in(given.removesuffix("%")) if isinstance(given, str) else None
    number = -(-count * percent // 100) if percent is not None else whole(given) or 0
    if number >= count if field == "minAvailable" else number == 0:
        return f"{field} {given}"
    # All but a number in `minAvailable` goes by the size that the pods' controller is to have. Jobs do not tell theirs,
    # and pods without a controller count as none: then Kubernetes allows nothing.
    by_size = field == "maxUnavailable" or percent is not None
    unsized = by_size and any(ref is None or ref.kind == "Job" for ref in map(controller_of, pods))
    unsized |= any(text(one, "reason") == "SyncFailed" for one in items(status, "conditions"))
    return f"{field} {given}, for which Kubernetes does not know how many pods there are to be" * unsized


def protects(budget: Json, pod: Json) -> bool:
    """Rule of `policy/v1`: an empty selector selects every pod of the namespace, a missing one selects none."""
    selector = mapping(budget, "spec").get("selector")
    return isinstance(selector, dict) and selects(selector, mapping(pod, "metadata", "labels"))


def _is_ready(pod: Json) -> bool:
    """Tell whether evicting the pod counts as a disruption; the dry run judges the others."""
    condition = next((one for one in items(pod, "status", "conditions") if text(one, "type") == "Ready"), {})
    return text(pod, "status", "phase") == "Running" and text(condition, "status") != "False"


async def _budgets(cluster: Cluster, namespace: str) -> Sequence[Json]:
    try:
        found, _ = await cluster.list("poddisruptionbudgets", "", f"metadata.namespace={namespace}")
    except ApiError as error:
        if error.status not in NOT_THERE:
            raise
        return ()
    return found


async def _dry_run(cluster: Cluster, pod: Json) -> EvictionBlock | None:
    uid, name, namespace = (text(pod, "metadata", field) for field in ("uid", "name", "namespace"))
    try:
        await cluster.evict_pod(namespace, name, uid, dry_run=True)
    except ApiError as error:
        # A 429 with a time to come again is the API server's load and no budget's word.
        if error.status == 429 and error.retry_after_seconds is None:
            return EvictionBlock(_blocked(f"pod {name}: {error.message}"), frozenset({uid}))
        if error.status not in NOT_THERE:
            raise
    return None


def _blocked(detail: str, **numbers: int) -> Reason:
    return no(Code.BLOCKED_BY_DISRUPTION_BUDGET, "", detail, **numbers)
