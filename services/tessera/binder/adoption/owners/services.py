"""
The service whose replica a group of users' pods is, where somebody guarantees a number of its replicas.

A replica is a pod that its controller makes again, one group of a LeaderWorkerSet, or a cluster of a RayService. The
number stands on the pods or on what makes them; controllers of Deployments copy their annotations to ReplicaSets, and
that of RayServices to RayClusters.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from tessera.binder.adoption.cache import maker_of
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.owners.known import NotAllowed, Owners
from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.reading import mapping, no, text
from tessera.binder.workloads.references import OwnerRef, controller_of, ref_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DIGITS_MAX, MIN_REPLICAS_ANNOTATION
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Service

FIELD = f"metadata.annotations[{MIN_REPLICAS_ANNOTATION}]"
RAY_CLUSTER, RAY_SERVICE = ("ray.io", "RayCluster"), ("ray.io", "RayService")
READ = (("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), RAY_CLUSTER)
"""Makers of replicas that the binder reads; of others the annotation in the pod template counts."""
MADE_BY_ANOTHER = ("ReplicaSet", "RayCluster")
"""Makers of replicas that are themselves made by the service: during a rollout there are two."""


async def find_service(owners: Owners, found: Adoption, pods: Sequence[Json]) -> Service | Reason | None:
    """
    The service with its minimum; None for what is no replica or has none; a Reason where the number is none.

    Raises ApiError, Transient.
    """
    maker = _maker_of(found.group, pods)
    made_by = {} if maker is None else await _look(owners, maker)
    if maker is None or (_is(maker, RAY_CLUSTER) and not _is(controller_of(made_by), RAY_SERVICE)):
        said = any(_number_on(thing) for thing in (*pods, made_by))
        more = 'its pods are one gang; tessera.io/preemptible: "false" keeps that'
        return no(Code.NOT_SUPPORTED_YET, FIELD, more) if said else None
    words = (_number_on(pods[0]) if pods else "") or _number_on(made_by)
    if not words:
        return None
    if not (words.isascii() and words.isdecimal() and len(words) <= DIGITS_MAX and int(words) <= REPLICAS_MAX):
        return no(Code.INVALID_FIELD, FIELD, f"{words!r} is no number of replicas from 0 to {REPLICAS_MAX}")
    # A rollout has two ReplicaSets, and one of a RayService two clusters: the replicas of both are the service's.
    above = maker.kind in MADE_BY_ANOTHER
    of = (controller_of(made_by) if above else ref_of(made_by) if made_by else None) or maker
    try:
        return Service(kind=of.kind, name=of.name, uid=of.uid or maker.uid, min_replicas=int(words))
    except ValidationError:
        return no(Code.INVALID_FIELD, FIELD, f"{of.kind} {of.name} has no name and UID that identify it")


def _maker_of(group: Group, pods: Sequence[Json]) -> OwnerRef | None:
    """The object that makes this replica and its like; None where the pods are all there is of it."""
    # A cluster that waits suspended has no pods, and is a replica all the same.
    if group.kind is GroupKind.RAY_CLUSTER:
        return group.owner
    if not pods:
        return None
    if group.kind is GroupKind.POD:
        controller = controller_of(pods[0])
        return None if controller is None or controller.group == "batch" else controller
    return maker_of(group, pods[0])


def _is(ref: OwnerRef | None, kind: tuple[str, str]) -> bool:
    return ref is not None and (ref.group, ref.kind) == kind


async def _look(owners: Owners, maker: OwnerRef) -> Json:
    if (maker.group, maker.kind) not in READ:
        return {}
    try:
        return await owners.look(maker) or {}
    except NotAllowed:
        return {}


def _number_on(thing: Json) -> str:
    return text(mapping(thing, "metadata"), "annotations", MIN_REPLICAS_ANNOTATION)
