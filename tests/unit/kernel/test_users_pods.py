"""Whose a user's pod is: by the permit's UIDs, unless another run has bound it."""

from typing import Any

from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_schemas.cluster.labels import PERMIT_ANNOTATION, RUN_ANNOTATION, bound_for
from tests.unit.binder.binder_builders import RUN, run
from tests.virtual_time import VirtualClock


def pod(uid: str, node: str = "", of: str = "", permit: str = "") -> dict[str, Any]:
    notes = {RUN_ANNOTATION: of, PERMIT_ANNOTATION: permit or uid} if of else {}
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"uid": uid, "name": uid, "annotations": notes}, "spec": spec}


def index(*pods: dict[str, Any]) -> UsersPods[str]:
    clock = VirtualClock()
    informer = Informer(MemoryCluster(SimCluster(clock), clock, "binder"), "pods", clock)
    users = UsersPods(informer, lambda one: str(one["metadata"]["uid"]))
    for one in pods:
        informer.objects[one["metadata"]["uid"]] = one
        users.take([Delta("ADDED", one, None)])
    return users


def test_an_unbound_pod_is_of_the_run_that_it_is_permitted_to() -> None:
    users = index(pod("uid-0"), pod("uid-1"), pod("stranger"))
    assert set(users.of(run(pods=1))) == {"uid-0"}
    assert users.runs() == []


def test_a_bound_pod_is_of_the_run_that_its_bind_wrote() -> None:
    users = index(pod("uid-0", "node-a", RUN))
    assert set(users.of(run(pods=1))) == {"uid-0"}
    assert (users.runs(), set(users.bound(RUN))) == ([RUN], {"uid-0"})


def test_what_another_run_has_bound_is_not_ours_though_we_are_permitted_to_it() -> None:
    users = index(pod("uid-0", "node-a", "another-1"))
    assert users.of(run(pods=1)) == {}
    assert set(users.bound("another-1")) == {"uid-0"}


def test_annotations_that_were_taken_off_change_nothing_of_whose_it_is() -> None:
    users = index(pod("uid-0", "node-a"))
    assert set(users.of(run(pods=1))) == {"uid-0"}


def test_annotations_copied_from_another_pod_say_nothing() -> None:
    assert bound_for(pod("uid-0", "node-a", RUN, permit="uid-9")) == ""
    assert bound_for(pod("uid-0", "", RUN)) == ""
    assert bound_for(pod("uid-0", "node-a", RUN)) == RUN


def test_a_change_names_the_runs_that_a_pod_comes_to_and_leaves() -> None:
    waiting, bound = pod("uid-0"), pod("uid-0", "node-a", RUN)
    users = index(waiting)
    assert users.take([Delta("MODIFIED", bound, waiting)]) == [RUN]
    assert users.take([Delta("DELETED", bound, bound)]) == [RUN]
    assert users.runs() == []


def test_what_was_seen_to_go_is_remembered_by_uid() -> None:
    waiting = pod("uid-0")
    users = index(waiting)
    users.take([Delta("DELETED", waiting, waiting)])
    assert "uid-0" in users.gone
    assert "uid-1" not in users.gone
