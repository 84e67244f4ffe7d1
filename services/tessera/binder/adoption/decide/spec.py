"""
The job that a group of pods amounts to, or the field because of which it cannot be one. Pure.

Everything that Kubernetes' own scheduler would have to honour is honoured or refused by name, and so is what other
systems' marks ask for; preferences are said in a condition (`marks.not_honoured`). The same pods give the same job, key
and ranks in every process, in whatever order they come.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from pydantic import ValidationError

from tessera.binder.adoption.decide.datasets import datasets_of
from tessera.binder.adoption.decide.durations import deadlines_that_run, grace, time_limit
from tessera.binder.adoption.decide.nested_domains import nest_slices
from tessera.binder.adoption.decide.ranks import chosen, missing_part, ranked
from tessera.binder.adoption.decide.roles import invalid
from tessera.binder.adoption.decide.spreading import spread_over_others
from tessera.binder.adoption.decide.suspending import is_preemptible
from tessera.binder.workloads.mark_table import LEAST_PODS, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY, SLICE_TOPOLOGY
from tessera.binder.workloads.marks import (
    find_project,
    find_queue,
    not_honoured,
    read_mark,
    refused_mark,
    said_preemptible,
)
from tessera.binder.workloads.pod_terms import own_gang_meant
from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.reading import as_name, mapping, no, text
from tessera.binder.workloads.references import controller_of
from tessera.binder.workloads.registry import domain_of, kind_of_group, parts_of
from tessera.binder.workloads.sessions import session_of_pods
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ALLOW_IDLE_ANNOTATION, QUEUE_LABEL
from tessera_schemas.job import JobIdle, JobSpec, Retry, Role, Session, Topology
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import PRIORITY_MAX, PRIORITY_MIN, Adopted

QUEUE = "default"
SHARED = "pod-group"
SHAPE_CHARACTERS = 16
BROUGHT_BACK = Retry(max_attempts=1000, backoff_max_seconds=60, on_failure=True, give_up_seconds=31_536_000)
"""How often pods are made again, and how soon, is their owner's to say: when it gives up, the job is cancelled."""
NOT_BROUGHT_BACK = Retry(max_attempts=1000, give_up_seconds=31_536_000)


@dataclass(frozen=True, slots=True)
class Adoption:
    """
    A group as a job. `key` is the submit's: owner and shape in one, so that the pods of the next attempt give the
    same key, and pods that ask for something else give another one: then the job of the old key is to be cancelled.

    `uids` are the pods in rank order (empty for a suspended Job), and `metadata` that of each. `wishes` are sentences
    about what the pods or their owner would like and do not get.
    """

    key: str
    spec: JobSpec
    group: Group
    adopted: Adopted
    uids: tuple[str, ...] = ()
    wishes: tuple[str, ...] = ()
    metadata: tuple[Json, ...] = ()


def spec_of(group: Group, pods: Sequence[Json], size: int, owner: Json | None = None) -> Adoption | Reason:
    """
    The job of a group's waiting pods (`groups.waits`), of which the oldest `size` are taken, one for each index.

    `owner` is the current object of `group.owner`; what it survives decides whether the job may be preempted. Fewer
    pods than `size` give the Reason to wait with (GangIncomplete), anything that cannot be honoured a refusal.
    """
    # What concerns the group as a whole is told before what is missing: more pods mend no disagreement.
    against = _disagreement(group, pods) or _kept_apart(group, pods) or _by_owner(owner)
    if against is not None:
        return against
    taken = _taken(group, pods, size, owner)
    if isinstance(taken, Reason):
        return taken
    ranks = ranked(taken)
    if isinstance(ranks, Reason):
        return ranks
    against = spread_over_others(group, ranks, pods)
    if against is not None:
        return against
    # From here on everything follows rank order: UIDs, key and roles must not depend on the order in which pods came.
    in_order = [pod for _, pod in ranks]
    if (term := own_gang_meant(in_order)) is not None:
        detail = "means pods of its own gang; topology, or a spread constraint, is for these"
        return no(Code.NOT_SUPPORTED_YET, f"{term.field}.labelSelector", detail)
    roles = _in_one_domain(group, [role for role, _ in ranks], owner)
    if isinstance(roles, Reason):
        return roles
    groups = kind_of_group(group).groups(owner, [(role.name, pod) for role, pod in ranks])
    if isinstance(groups, Reason):
        return groups
    roles, slices = nest_slices(roles, in_order)
    spec = _job_spec(group, roles, [*groups, *slices], in_order, owner)
    if isinstance(spec, Reason):
        return spec
    try:
        adopted = _adopted(group, in_order)
    except ValidationError as error:
        return invalid(error, "metadata.ownerReferences")
    uids = tuple(text(pod, "metadata", "uid") for pod in in_order)
    key, wishes = _key(group, in_order, spec, adopted), _wishes(group, in_order, owner)
    metadata = tuple(mapping(pod, "metadata") for pod in in_order)
    return Adoption(key, spec, group, adopted, uids, wishes, metadata)


# -- which pods -------------------------------------------------------------------------------------------------------


def _taken(group: Group, pods: Sequence[Json], size: int, owner: Json | None) -> Sequence[Json] | Reason:
    """The pods that start together, of each part as many as it needs; or what is still missing."""
    parts = parts_of(group, owner, pods)
    if isinstance(parts, Reason):
        return parts
    kind = kind_of_group(group)
    taken = chosen(kind.in_parts(pods), size, parts)
    if len(taken) < size:
        return no(Code.GANG_INCOMPLETE, f"{group.kind} {group.name}", pods=len(taken), pods_wanted=size)
    lacking = missing_part(taken, parts) if parts else None
    if lacking is not None:
        name, there = lacking
        return no(Code.GANG_INCOMPLETE, f"{group.kind} {group.name}", f"of {name}", pods=there, pods_wanted=parts[name])
    return kind.in_roles(owner, taken)


def _by_owner(owner: Json | None) -> Reason | None:
    """A mark on the owner that asks for something unsupported."""
    return None if owner is None else refused_mark(owner, f"{text(owner, 'kind')}.metadata")


def _kept_apart(group: Group, pods: Sequence[Json]) -> Reason | None:
    """Pods that start one by one cannot be kept in one domain."""
    if (
        group.kind is not GroupKind.POD
        or controller_of(pods[0]) is None
        or not read_mark(pods[0], SLICE_TOPOLOGY, REQUIRED_TOPOLOGY)
    ):
        return None
    field = f"metadata.annotations[{REQUIRED_TOPOLOGY}]"
    return no(Code.NOT_SUPPORTED_YET, field, "the pods of this owner start one by one; make them a gang")


def _disagreement(group: Group, pods: Sequence[Json]) -> Reason | None:
    """A field in which all pods of a group must agree and do not."""
    size = "" if group.mark is None else group.mark.size
    sizes = {words for pod in pods if size and (words := read_mark(pod, size))}
    if len(sizes) > 1:
        assert group.mark is not None
        field = f"metadata.{group.mark.size_in}[{size}]"
        return no(Code.GANG_DISAGREES, field, f"gang {group.name}: {', '.join(sorted(sizes))}")
    # A group starts as a whole and so from one queue; to pick one of several would charge a quota that nobody named.
    queues = {find_queue(pod)[0] for pod in pods}
    if len(queues) > 1:
        field = next(field for pod in pods if (field := find_queue(pod)[1]))
        words = ", ".join(queue or f"none ({QUEUE})" for queue in sorted(queues))
        return no(Code.GANG_DISAGREES, field, f"{group.kind} {group.name}: {words}")
    projects = {find_project(pod)[0] for pod in pods}
    if len(projects) > 1:
        field = next(field for pod in pods if (field := find_project(pod)[1]))
        words = ", ".join(project or "none" for project in sorted(projects))
        return no(Code.GANG_DISAGREES, field, f"{group.kind} {group.name}: {words}")
    return None


def _in_one_domain(group: Group, roles: list[Role], owner: Json | None) -> list[Role] | Reason:
    """All pods of Kubernetes' own group, or of Volcano's, share a domain of the node label that it names."""
    asked, field = domain_of(group, owner)
    if isinstance(asked, Reason):
        return asked
    if asked is None:
        return roles
    if any(role.topology is not None and role.topology.required for role in roles):
        return no(Code.GANG_DISAGREES, field, f"the pods ask for a domain of their own by {REQUIRED_TOPOLOGY}")
    try:
        shared = Topology.model_validate({**asked, "group": SHARED})
    except ValidationError as error:
        return invalid(error, field)
    return [role.model_copy(update={"topology": shared}) for role in roles]


def _wishes(group: Group, pods: Sequence[Json], owner: Json | None) -> tuple[str, ...]:
    said = list(chain.from_iterable(map(not_honoured, pods)))
    if group.kind is GroupKind.POD and controller_of(pods[0]) is not None and read_mark(pods[0], PREFERRED_TOPOLOGY):
        said.append(f"{PREFERRED_TOPOLOGY}: the pods of this owner start one by one, each where it fits")
    if owner is not None:
        said += [*not_honoured(owner), *kind_of_group(group).wishes(owner), *deadlines_that_run(owner)]
        if group.kind is GroupKind.POD and LEAST_PODS in mapping(owner, "metadata", "annotations"):
            said.append(f"{LEAST_PODS}: its pods start one by one")
    return tuple(dict.fromkeys(said))


# -- the job ----------------------------------------------------------------------------------------------------------


def _job_spec(
    group: Group, roles: list[Role], groups: list[Json], pods: Sequence[Json], owner: Json | None
) -> JobSpec | Reason:
    limit = time_limit(pods, owner)
    if isinstance(limit, Reason):
        return limit
    datasets = datasets_of(pods)
    if isinstance(datasets, Reason):
        return datasets
    queue, field = queue_of(pods[0], owner)
    project, named_in = _project_of(pods[0], owner)
    session, user = (group.kind is GroupKind.POD and session_of_pods(pods)) or (None, "")
    # A pod that nobody makes again is not brought back after a failure of its own, whatever is tried.
    returns = all(controller_of(pod) is not None for pod in pods)
    try:
        return JobSpec.model_validate(
            {
                "name": as_name(group.name) or "pods",
                "queue": queue,
                "project": project,
                "preemptible": _is_preemptible(group, pods, owner, session),
                "session": session,
                "user": user,
                "roles": tuple({role.name: role for role in roles}.values()),
                "groups": groups,
                "time_limit_seconds": limit,
                "termination_grace_seconds": max(map(grace, pods)),
                "ttl_seconds_after_finished": 0,
                "retry": BROUGHT_BACK if returns else NOT_BROUGHT_BACK,
                "idle": JobIdle(allow_idle=True) if all(map(_may_be_idle, pods)) else None,
                "datasets": datasets,
            }
        )
    except ValidationError as error:
        if error.errors()[0]["loc"][:1] == ("queue",):
            detail = f"{queue!r} is no name of a queue; the label {QUEUE_LABEL} counts before it, and an operator may "
            detail += "say the queue for which it stands, as queue_names of the configuration"
            return no(Code.INVALID_FIELD, field, detail)
        if error.errors()[0]["loc"][:1] == ("project",):
            return no(Code.INVALID_FIELD, named_in, f"{project!r} is no name of a project: write a label's value")
        return invalid(error, "spec")


def _is_preemptible(group: Group, pods: Sequence[Json], owner: Json | None, session: Session | None) -> bool:
    """A session has its state in the pod, which no controller brings back: it goes if its pod says so."""
    return is_preemptible(group, pods, owner) and (session is None or said_preemptible(pods, owner) is True)


def _project_of(pod: Json, owner: Json | None) -> tuple[str, str]:
    """The project that the pod names, or else its owner, and the field."""
    named = find_project(pod)
    if not named[0] and owner is not None:
        project, field = find_project(owner)
        named = project, f"{text(owner, 'kind')}.{field}"
    return named


def queue_of(pod: Json, owner: Json | None) -> tuple[str, str]:
    """The queue of the pod's job, and the field that names it: the pod's own marks count before its owner's."""
    named = find_queue(pod)
    if not named[0] and owner is not None:
        queue, field = find_queue(owner)
        named = queue, f"{text(owner, 'kind')}.{field}"
    if named[0]:
        return named
    fields = (("spec", "queue"), ("spec", "runPolicy", "schedulingPolicy", "queue"))
    return next(((queue, ".".join(path)) for path in fields if (queue := text(owner, *path))), (QUEUE, "spec.queue"))


def _may_be_idle(pod: Json) -> bool:
    return text(pod, "metadata", "annotations", ALLOW_IDLE_ANNOTATION) == "true"


def _adopted(group: Group, pods: Sequence[Json]) -> Adopted:
    """The least priority of the pods: one that has a higher one does not take the others along."""
    least = min(pods, key=lambda pod: (_priority(pod), text(pod, "spec", "priorityClassName")))
    priority, name = _priority(least), text(least, "spec", "priorityClassName")
    # A group that says its own priority decides for all of its pods.
    if group.policy is not None and group.policy.priority is not None:
        priority, name = group.policy.priority, group.policy.priority_class
    owner = kind_of_group(group).lives_by(group, pods[0])
    return Adopted(
        api_version=owner.api_version[:200],
        owner_kind=owner.kind,
        owner_name=owner.name,
        owner_uid=owner.uid[:64],
        priority=max(PRIORITY_MIN, min(priority, PRIORITY_MAX)),
        priority_class=name[:253],
    )


def _priority(pod: Json) -> int:
    """Priority from the pod's PriorityClass; Kubernetes takes 32 bits."""
    found = mapping(pod, "spec").get("priority")
    return max(-(2**31), min(found, 2**31 - 1)) if type(found) is int else 0


def _key(group: Group, pods: Sequence[Json], spec: JobSpec, adopted: Adopted) -> str:
    return key_of(kind_of_group(group).anchor(group, pods), spec, adopted.priority)


def key_of(anchor: str, spec: JobSpec, priority: int) -> str:
    """
    Key of the job. The evictions that its owner still survives are left out: they change with each attempt, and the job
    keeps its place.
    """
    asked = spec.model_copy(update={"preemptible": True})
    shape = hashlib.sha256(f"{asked.digest()} {priority}".encode()).hexdigest()[:SHAPE_CHARACTERS]
    return f"{anchor}.{shape}"
