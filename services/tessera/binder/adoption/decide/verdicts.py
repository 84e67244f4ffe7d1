"""
Verdicts on a job for its pods' condition and event: one typed code, one sentence with numbers, one way out. Pure.

Only codes are compared: numbers change all the time, and each change would be a write per pod.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.binder.workloads.reading import items, mapping, text
from tessera.domain.entities import EndedJob, Job, Run
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.readiness import in_backoff
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SCHEDULER_NAME
from tessera_schemas.reasons import TEMPORARY, Code, Reason
from tessera_schemas.text.units import format_milli
from tessera_schemas.work.placement import Placement

MESSAGE_CHARACTERS = 1000
"""An event's note may have 1,024."""
CONDITION = "PodScheduled"
NOT_HONOURED = "tessera.io/NotHonoured"
"""The condition that names what a pod would like and does not get; it does not keep it from being placed."""
SUSPENDED, PODS_MISSING = "SuspendedByAnother", "PodsMissing"
COMPONENT = "tessera-binder"
LET_IN = "an operator names it under `tenants` in the chart's values"

WAYS_OUT: dict[Code, str] = {
    Code.NOT_CONFIGURED: "an operator applies a configuration",
    Code.NO_SUCH_TENANT: "an operator makes a tenant with the name of this namespace",
    Code.NO_SUCH_QUEUE: "name another queue in the label tessera.io/queue, or have an operator make this one",
    Code.QUEUE_NOT_ALLOWED: "name another queue in the label tessera.io/queue",
    Code.EXCEEDS_JOB_LIMIT: "ask for less, or have an operator raise the limit",
    Code.EXCEEDS_MAX_QUOTA: "ask for less, or name a larger queue in the label tessera.io/queue",
    Code.INADMISSIBLE: "compare what the pod asks for and its selectors with the nodes: `tessera nodes`",
    Code.NOT_SUPPORTED_YET: "change the field, or leave this pod to another scheduler",
    Code.INVALID_FIELD: "change the field",
    Code.MISSING_FIELD: "set the field",
    Code.GANG_DISAGREES: "give all pods of the gang the same value",
    Code.GANG_INCOMPLETE: "it goes on once the missing pods are made",
    Code.OWNER_NOT_FOUND: "it goes on once the object is made",
    Code.FORBIDDEN: "an operator adds it to the ClusterRole tessera-owner-reader",
    Code.VOLUME_NOT_READY: "it goes on once the claim is bound and free",
    Code.CLAIM_NOT_READY: "it goes on once the claim is there and free",
    Code.LIMIT_EXCEEDED: "it goes on once others of this namespace have ended",
    Code.TENANT_BUDGET_EXCEEDED: "it is submitted by itself as soon as the budget allows",
    Code.LEDGER_FULL: "it is submitted by itself once there is room",
    Code.BACKOFF: "it is tried again by itself; why its last run ended: `tessera explain`",
    Code.ON_HOLD: "let it go with `tessera release`",
    Code.HELD_BY_OPERATOR: "an operator lets it go",
    Code.QUEUE_STOPPED: "an operator lets the queue go",
    Code.BUDGET_SPENT: "an operator grants more: `tessera budget grant`; `tessera budget` shows what is left",
    Code.NAMESPACE_REFUSES: "the namespace takes pods again: look at its quota, rights and admission rules",
    Code.NO_FIT: "it starts once there is room; `tessera explain` names the changes that would start it now",
    Code.NO_NODES: "an operator adds nodes to the pool, or makes them ready",
}
WAITED_FOR = (
    Code.GANG_INCOMPLETE,
    Code.OWNER_NOT_FOUND,
    Code.VOLUME_NOT_READY,
    Code.CLAIM_NOT_READY,
    Code.ON_HOLD,
    *TEMPORARY,
)
OUTCOMES = {Phase.SUCCEEDED: "succeeded", Phase.FAILED: "failed", Phase.CANCELLED: "was cancelled"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` is the reason of the condition and of the event; `warning` says whether somebody has to do something."""

    code: str
    message: str
    warning: bool


def describe_job(job: Job, ts: int, place: str = "") -> Verdict | None:
    """
    Why the job's pods are not placed at `ts`; None while nothing was said about it, and while it has a run.

    `place` says where it stands in line.
    """
    if job.phase is not Phase.QUEUED or job.reason is None:
        return None
    reason = (None if job.kept_out else in_backoff(job, ts)) or job.reason
    where = f"job {job.job_id} waits in queue {job.queue}"
    return _verdict(reason, f"{where}, {place}" if place else where, warning=False)


def describe_ended(job: EndedJob) -> Verdict:
    """The job has ended, and pods of its group still wait."""
    reason = job.reason.sentence() if job.reason is not None else ""
    outcome = f"job {job.job_id} {OUTCOMES.get(job.phase, 'has ended')}"
    way_out = "these pods are not placed any more; make the object again under another name to submit it again"
    message = "; ".join(part for part in (outcome, reason, way_out) if part)
    return Verdict(Code.ALREADY_ENDED.value, message[:MESSAGE_CHARACTERS], warning=True)


def describe_refusal(reasons: Sequence[Reason]) -> Verdict:
    """The submit was refused, or the pods cannot be adopted: all reasons, the first as the code."""
    others = "".join(f"; also {reason.sentence()}" for reason in reasons[1:])
    return _verdict(reasons[0], "refused", warning=True, more=others)


def describe_waiting(reason: Reason) -> Verdict:
    """The group is not complete, or its owner is not there yet."""
    return _verdict(reason, "not submitted yet", warning=False)


def describe_suspended_by_user(job: Job) -> Verdict:
    """Verdict for an owner that its user suspended; there is no pod to show it on."""
    owner = job.adopted.owner if job.adopted else "its owner"
    message = f"job {job.job_id} keeps its place in queue {job.queue}; it goes on once you resume {owner}"
    return Verdict("SuspendedByUser", message[:MESSAGE_CHARACTERS], warning=False)


def describe_suspended_while_waiting(why: Verdict) -> Verdict:
    """Verdict for an owner that Tessera suspends because its job waits; its pods are taken away."""
    message = f"{why.message}. It waits without pods: Tessera resumes it once it has its room"
    return Verdict("WaitsSuspended", message[:MESSAGE_CHARACTERS], warning=False)


def describe_not_resumed(reason: Reason) -> Verdict:
    """Verdict for an owner whose job has its room and that the binder may not resume."""
    way_out = "an operator names this namespace under `tenants` in the chart's values, or you resume it yourself"
    return Verdict("NotResumed", f"{reason.sentence()}. To go on: {way_out}"[:MESSAGE_CHARACTERS], warning=True)


def describe_missing_pods(reason: Reason, seconds: int, behind: bool) -> Verdict:
    """The owner was resumed and its controller makes no pods, or is `behind`: others get the room."""
    why = f"resumed, and after {seconds} s not all of its pods are there: {reason.sentence()}"
    way_out = "its events name what keeps them, such as a ResourceQuota or an admission rule; they queue once made"
    if behind:
        way_out = "its controller runs again and works through what it has before this; they queue once made"
    return Verdict(PODS_MISSING, f"{why}. To go on: {way_out}"[:MESSAGE_CHARACTERS], warning=True)


def describe_refused_pods(reason: Reason, why: str) -> Verdict:
    """The namespace does not take all of the owner's pods; `why` names the ResourceQuota or rule."""
    way_out = "raise what is named or end what uses it; of several that keep it from each other, suspend all but one, "
    way_out += "or name a queue with suspend_waiting, which lets one through after the other"
    message = f"{reason.sentence()}; Kubernetes refuses the others: {why}. To go on: {way_out}"
    return Verdict(PODS_MISSING, message[:MESSAGE_CHARACTERS], warning=True)


def describe_blocked_eviction(reason: Reason) -> Verdict:
    """The run is to stop and a disruption budget does not let it; an event only, since the pod runs."""
    return _verdict(reason, "to be evicted", warning=True)


def describe_overridden_budget(refusal: str, seconds: float = 0) -> Verdict:
    """An event only: a pod is deleted though a budget forbids it: left of a gang, or, without `seconds`, called in."""
    why = f"another pod of its gang is gone, and a disruption budget has kept this one for {seconds:.0f} seconds"
    if not seconds:
        why = "it holds quota that was lent, and its disruption budget has kept that for policy.lent_kept_seconds"
    message = f"deleted: {why} ({refusal}); the gang starts again once all of it is gone"
    return Verdict("DisruptionBudgetOverridden", message[:MESSAGE_CHARACTERS], warning=True)


def describe_preempted(job: str, reason: Reason, preemptor: str) -> Verdict:
    """The pod stops for another job; an event only, since its own conditions are the kubelet's by then."""
    way_out = "it is queued again and starts once there is room"
    message = f"job {job} gives way to {preemptor or 'another job'}: {reason.sentence()}; {way_out}"
    return Verdict("Preempted", message[:MESSAGE_CHARACTERS], warning=False)


def describe_scheduled(job: Job, run: Run, placement: Placement) -> Verdict:
    """The pod was bound; an event only, and of a large gang its first pods speak for all."""
    gpus = format_milli(placement.gpu_milli * len(placement.devices))
    held = f" with {gpus} GPU{'' if gpus == '1' else 's'}" if placement.devices else ""
    nodes, pods = len({place.node for place in run.places}), len(run.places)
    gang = f", rank {placement.rank} of {pods} pods on {nodes} node{'' if nodes == 1 else 's'}" if pods > 1 else ""
    message = f"placed on {placement.node}{held} for job {job.job_id}, attempt {run.attempt}{gang}"
    return Verdict("Scheduled", message[:MESSAGE_CHARACTERS], warning=False)


def describe_slow_start(seconds: int, reason: Reason | None) -> Verdict:
    """A pod has its node and does not start; it is not stopped for that."""
    said = "its images may still be pulled" if reason is None else reason.sentence()
    message = f"not started {seconds} s after its bind: {said}. It keeps its place; delete it to have it placed anew"
    return Verdict("SlowStart", message[:MESSAGE_CHARACTERS], warning=True)


def describe_closed_namespace(namespace: str) -> Verdict:
    """The binder may not bind there: the pods can be told only where it may at least do that."""
    message = f"not submitted: namespace {namespace} has not let the binder in. To go on: {LET_IN}"
    return Verdict("NamespaceNotLetIn", message, warning=True)


def describe_finding(found: Reason) -> Verdict:
    """The verdict on a finding of `group_of`, `size_of` or `spec_of`: something to wait for, or a refusal."""
    if found.code is Code.ON_HOLD:  # something else has to let it go, and the reason says what
        return Verdict(SUSPENDED, f"not submitted yet: {found.field}: {found.detail}"[:MESSAGE_CHARACTERS], False)
    return describe_refusal([found]) if is_refusal(found) else describe_waiting(found)


def is_refusal(found: Reason) -> bool:
    """Whether somebody has to change something; else the group only waits."""
    return found.code not in WAITED_FOR


def describe_wishes(sentences: Sequence[str]) -> Verdict:
    """The verdict on settings of the pods that are not honoured."""
    message = f"placed without regard to {'; '.join(sentences)}"
    return Verdict("NotHonoured", message[:MESSAGE_CHARACTERS], warning=False)


def find_condition(thing: Json, kind: str) -> Json:
    """The condition of this type in the object's status; {} without one."""
    return next((one for one in items(thing, "status", "conditions") if one.get("type") == kind), {})


def condition_set(thing: Json, kind: str, status: str, reason: str, message: str, now: str) -> Json:
    """
    The merge patch of the object's status that sets one condition; the others stay as they are.

    It names all of them, since a merge patch replaces lists; as a strategic patch it is right, too. The caller adds the
    precondition. `now` is RFC 3339, the time of the transition unless `status` stays the same.
    """
    before = find_condition(thing, kind)
    since = text(before, "lastTransitionTime") if before.get("status") == status else ""
    texts = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since or now}
    others = [one for one in items(thing, "status", "conditions") if one.get("type") != kind]
    return {"status": {"conditions": [*others, texts]}}


def wishes_patch(pod: Json, verdict: Verdict, now: str) -> Json | None:
    """The patch of the pod's status that names what is not honoured; None when it says just that already."""
    if find_condition(pod, NOT_HONOURED).get("message") == verdict.message:
        return None
    return condition_set(pod, NOT_HONOURED, "True", verdict.code, verdict.message, now)


def condition_patch(pod: Json, verdict: Verdict, now: str, renewed: bool = False) -> Json | None:
    """The patch of the pod's status; None when its condition says this code, or `renewed` also this message."""
    before = find_condition(pod, CONDITION)
    # What was written is read from the pod and not remembered: so a binder that was just started writes nothing twice.
    is_same = before.get("status") == "False" and before.get("reason") == verdict.code
    if is_same and not (renewed and before.get("message") != verdict.message):
        return None
    return condition_set(pod, CONDITION, "False", verdict.code, verdict.message, now)


def make_event(thing: Json, verdict: Verdict, now: str) -> Json:
    """
    The core/v1 Event about a pod, or about an object that says its kind. `now` is RFC 3339 with seconds.

    To be made beside a `condition_patch` that is not None, so once for each change of code. Its name comes from UID,
    code and time: a repeated create finds it there.
    """
    meta = mapping(thing, "metadata")
    name, namespace, uid = (text(meta, field) for field in ("name", "namespace", "uid"))
    digest = hashlib.sha256(f"{uid} {verdict.code} {now}".encode()).hexdigest()[:16]
    kind = {"apiVersion": text(thing, "apiVersion") or "v1", "kind": text(thing, "kind") or "Pod"}
    about = kind | {"name": name, "namespace": namespace, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[:200].rstrip('.-')}.{digest}", "namespace": namespace},
        "involvedObject": about | {"resourceVersion": text(meta, "resourceVersion")},
        "type": "Warning" if verdict.warning else "Normal",
        "reason": verdict.code,
        "message": verdict.message,
        "source": {"component": COMPONENT},
        "reportingComponent": SCHEDULER_NAME,
        "reportingInstance": COMPONENT,
        "action": "Scheduling",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _verdict(reason: Reason, standing: str, warning: bool, more: str = "") -> Verdict:
    way_out = WAYS_OUT.get(reason.code, "")
    message = f"{standing}: {reason.sentence()}{more}" + (f". To go on: {way_out}" if way_out else "")
    return Verdict(reason.code.value, message[:MESSAGE_CHARACTERS], warning)
