"""A group of a LeaderWorkerSet is one job for as long as the set wants it, however often its pods are made anew."""

import hashlib

from tessera.binder.workloads.port import Group
from tessera.binder.workloads.registry import group_of, kind_of_group, kind_of_object
from tessera_schemas.base import Json

LWS = "leaderworkerset.sigs.k8s.io"
KEY = hashlib.sha1(b"lab/llm-1", usedforsecurity=False).hexdigest()


def pods(workers: str) -> list[Json]:
    """A leader, and a worker of the StatefulSet with this UID."""
    return [one_pod(0, "llm", "leaders"), one_pod(1, "llm-1", workers)]


def one_pod(index: int, maker: str, uid: str) -> Json:
    labels = {f"{LWS}/name": "llm", f"{LWS}/group-key": KEY, f"{LWS}/worker-index": str(index)}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": maker, "uid": uid, "controller": True}
    meta = {"namespace": "lab", "name": f"llm-1-{index}", "uid": f"{uid}-{index}", "labels": labels}
    return {"metadata": meta | {"annotations": {f"{LWS}/size": "2"}, "ownerReferences": [owner]}}


def group() -> Group:
    found = group_of(pods("first")[0], {})
    assert isinstance(found, Group)
    return found


def test_a_group_that_was_recreated_is_the_same_and_lives_by_its_set() -> None:
    kind = kind_of_group(group())
    assert kind.anchor(group(), pods("first")) == kind.anchor(group(), pods("second"))
    owner = kind.lives_by(group(), pods("first")[1])
    assert (owner.kind, owner.name) == ("LeaderWorkerSet", "llm")


def test_a_set_wants_the_groups_below_its_number_and_those_of_names_that_it_does_not_know() -> None:
    for replicas, wanted in ((1, False), (2, True)):
        meta = {"namespace": "lab", "name": "llm"}
        owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": meta}
        kind = kind_of_object(owner)
        assert kind is not None
        assert kind.keeps({**owner, "spec": {"replicas": replicas}}, KEY) is wanted
        assert kind.keeps({**owner, "spec": {"replicas": replicas}}, "another")
