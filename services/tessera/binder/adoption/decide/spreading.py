"""
Topology spread constraints of users' pods that keep pods waiting (`DoNotSchedule`). Pure.

A gang is placed in one decision, so that only its own pods can be counted. One constraint is honoured where its
selector selects the pods of one role and names a label that no pods but those of the gang's owner have. Any other one
would count pods that are not looked at, and is refused by the name of its field.
"""

import json
from collections.abc import Sequence

from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.reading import items, mapping, no, selects, text, whole
from tessera_schemas.base import Json
from tessera_schemas.job import REPLICAS_MAX, Role
from tessera_schemas.reasons import Code, Reason

FIELD = "spec.topologySpreadConstraints"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
OF_OWNERS = (
    "batch.kubernetes.io/controller-uid",
    JOB_NAME_LABEL,
    "controller-uid",
    "job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
"""Labels by which controllers mark the pods that they make."""
POLICIES = ("nodeAffinityPolicy", "nodeTaintsPolicy")


def spread_of(spec: Json) -> Json | tuple[str, str]:
    """The fields of the role for the pod's constraint; or a field that is not honoured, with what is."""
    hard = _hard(spec)
    if not hard:
        return {}
    if len(hard) > 1:
        return f"{FIELD}[{hard[1][0]}].whenUnsatisfiable", "one constraint with DoNotSchedule is honoured"
    index, constraint = hard[0]
    at, key, skew = f"{FIELD}[{index}]", text(constraint, "topologyKey"), whole(constraint, "maxSkew")
    if not key or not skew or text(constraint, "whenUnsatisfiable") != "DoNotSchedule":
        return at, "topologyKey and maxSkew with DoNotSchedule are honoured"
    if (whole(constraint, "minDomains") or 1) > 1:
        return f"{at}.minDomains", "the values of suitable nodes count, however many there are"
    for policy in POLICIES:
        if text(constraint, policy) not in ("", "Honor"):
            return f"{at}.{policy}", "Honor is honoured"
    return {"spread": key, "max_skew": min(skew, REPLICAS_MAX)}


def spread_over_others(group: Group, ranks: Sequence[tuple[Role, Json]], waiting: Sequence[Json]) -> Reason | None:
    """The first constraint of a gang's pods, in rank order, that would count other pods than those of one role."""
    of_role: dict[str, set[str]] = {}
    for role, pod in ranks:
        of_role.setdefault(role.name, set()).add(text(pod, "metadata", "uid"))
    own = (*OF_OWNERS, *(() if group.mark is None else group.mark.names))
    judged = set[str]()
    for role, pod in ranks:
        if not role.spread:
            continue
        index, constraint = _hard(mapping(pod, "spec"))[0]
        labels, selector = mapping(pod, "metadata", "labels"), _selector(constraint, pod)
        # Thousands of pods mostly ask the same; one look at all of them answers for each.
        question = json.dumps([role.name, selector], sort_keys=True)
        if question in judged:
            continue
        judged.add(question)
        at = f"{FIELD}[{index}].labelSelector"
        # Pods that come later would be placed without these, which Kubernetes would count then.
        if group.kind is GroupKind.POD or group.at_least or group.replaces or group.beside:
            return no(Code.NOT_SUPPORTED_YET, at, "some of its pods start by themselves; make them one gang")
        # Which other pods have a label that users choose cannot be known: some are another scheduler's, or come later.
        if not any(key in own and key in labels for key in _pinned(selector)):
            detail = f"name a label of the owner's pods alone in it, such as {JOB_NAME_LABEL}"
            return no(Code.NOT_SUPPORTED_YET, at, detail)
        selected = (each for each in waiting if selects(selector, mapping(each, "metadata", "labels")))
        there = {text(each, "metadata", "uid") for each in selected}
        # Kubernetes would count these others as well, and place the role where they leave it room.
        if there != of_role[role.name]:
            detail = f"it has to select the pods of role {role.name}"
            return no(Code.NOT_SUPPORTED_YET, at, detail, pods=len(there), pods_wanted=len(of_role[role.name]))
    return None


def _hard(spec: Json) -> list[tuple[int, Json]]:
    """Constraints that keep a pod waiting, by their index."""
    found = enumerate(items(spec, "topologySpreadConstraints"))
    return [(index, each) for index, each in found if each.get("whenUnsatisfiable") != "ScheduleAnyway"]


def _selector(constraint: Json, pod: Json) -> Json:
    """The constraint's selector with the pod's own values of its `matchLabelKeys`; a key that the pod lacks is none."""
    keys, labels = constraint.get("matchLabelKeys"), mapping(pod, "metadata", "labels")
    named = sorted(key for key in keys if isinstance(key, str) and key in labels) if isinstance(keys, list) else []
    selector = mapping(constraint, "labelSelector")
    conditions = [{"key": key, "operator": "In", "values": [labels[key]]} for key in named]
    return {**selector, "matchExpressions": [*items(selector, "matchExpressions"), *conditions]}


def _pinned(selector: Json) -> set[str]:
    """Labels of which the selector permits one value."""
    conditions = items(selector, "matchExpressions")
    one = {
        text(each, "key")
        for each in conditions
        if text(each, "operator") == "In" and isinstance(each.get("values"), list) and len(each["values"]) == 1
    }
    return {*mapping(selector, "matchLabels"), *one}
