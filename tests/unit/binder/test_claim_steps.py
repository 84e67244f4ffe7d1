"""The writes on a claim, one after the other, towards its pod and back."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.binder.claims.decide.allocation import AllocatedDevice, ClaimReservation, allocation_of, share_id
from tessera.binder.claims.decide.steps import Write, find_unready, next_joining, next_undo, next_write
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION, RUN_ANNOTATION, RUN_LABEL
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import DrawnDevice
from tests.builders import node_seen
from tests.unit.binder.binder_builders import JOB, RUN
from tests.unit.binder.claim_builders import CLASS, DRIVER, claim, device_class, drawn, opaque, protected

NOW = "2026-11-29T00:00:00Z"
POD = {"resource": "pods", "name": "pod-0", "uid": "u0"}
OTHER = {"resource": "pods", "name": "pod-1", "uid": "u1"}
ONE = {"name": "one", "exactly": {"deviceClassName": CLASS}}
EITHER = {
    "name": "one",
    "firstAvailable": [{"name": "large", "deviceClassName": "large"}, {"name": "small", "deviceClassName": "small"}],
}


def wanted(*devices: DrawnDevice, classes: tuple[Json, ...] = (), **published: AllocatedDevice) -> ClaimReservation:
    """Every drawn device is published, as a plain one of its node unless said otherwise by name."""
    of = devices or (drawn(),)
    there = {one.id: published.get(one.device.replace("-", "_"), AllocatedDevice({"name": one.device})) for one in of}
    known = {each["metadata"]["name"]: each for each in classes or (device_class(),)}
    return ClaimReservation(RUN, 0, "pod-0", "u0", "node-a", of, there, known)


def allocated(of: ClaimReservation | None = None, found: Json | None = None, *users: Json) -> Json:
    """The claim as it is once all was written."""
    found = protected(found or claim(), RUN)
    allocation = allocation_of(found, of or wanted(), NOW)
    return found | {"status": {"allocation": allocation, "reservedFor": list(users or (POD,))}}


# -- towards the pod


def test_the_finalizer_and_the_mark_come_before_the_allocation():
    first = next_write(claim(), wanted(), NOW)
    assert first == Write(
        "metadata",
        {
            "metadata": {
                "uid": "uid-of-claim",
                "resourceVersion": "7",
                "finalizers": [DELETE_PROTECTION],
                "annotations": {RUN_ANNOTATION: RUN},
            }
        },
    )


def test_allocation_and_user_are_one_write_held_to_the_version():
    write = next_write(protected(claim(), RUN), wanted(), NOW)
    assert isinstance(write, Write)
    assert write.what == "status"
    assert write.patch["metadata"] == {"uid": "uid-of-claim", "resourceVersion": "7"}
    assert write.patch["status"]["reservedFor"] == [POD]
    assert write.patch["status"]["allocation"] == {
        "devices": {"results": [{"request": "one", "driver": DRIVER, "pool": "node-a", "device": "gpu-0"}]},
        "allocationTimestamp": NOW,
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]
        },
    }


def test_a_claim_that_tessera_made_needs_no_mark():
    made = claim()
    made["metadata"]["labels"] = {RUN_LABEL: RUN}
    write = next_write(made, wanted(), NOW)
    assert isinstance(write, Write)
    assert "annotations" not in write.patch["metadata"]


def test_a_label_that_a_user_copied_does_not_pass_for_the_mark():
    made = protected(claim())
    made["metadata"]["labels"] = {RUN_LABEL: "another"}
    write = next_write(made, wanted(), NOW)
    assert isinstance(write, Write)
    assert write.patch["metadata"]["annotations"] == {RUN_ANNOTATION: RUN}
    made["metadata"]["annotations"] = {RUN_ANNOTATION: RUN}
    assert next_write(made, wanted(), NOW).what == "status"  # type: ignore[union-attr]


def test_a_claim_with_its_pod_needs_nothing_more():
    assert next_write(allocated(), wanted(), NOW) is None


def test_a_further_pod_joins_a_claim_that_has_the_same_devices():
    write = next_write(allocated(None, None, OTHER), wanted(), NOW)
    assert isinstance(write, Write)
    assert write.patch["status"] == {"reservedFor": [OTHER, POD]}


@pytest.mark.parametrize("device", ["gpu-1", "gpu-0"])
def test_what_an_earlier_attempt_left_for_the_same_pods_is_taken_back_first(device: str):
    """The same devices too: under the mark of the earlier attempt nobody would give them back."""
    later = replace(wanted(drawn(device)), run_id=f"{JOB}-2")
    taken_back = Write("status", held(status={"reservedFor": None, "allocation": None}))
    assert next_write(allocated(), later, NOW) == taken_back
    of_two = allocated(None, None, POD, OTHER)
    assert next_write(of_two, later, NOW) != taken_back
    assert next_write(of_two, replace(later, peers=frozenset({OTHER["uid"]})), NOW) == taken_back


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (allocated(wanted(drawn("gpu-1"))), "it was allocated meanwhile and has gpu.example.com/node-a/gpu-1"),
        (claim() | {"metadata": {"name": "claim", "deletionTimestamp": NOW}}, "it is being deleted"),
        (allocated(None, None, *({"uid": str(n)} for n in range(256))), "256 pods use it already"),
    ],
    ids=["other devices", "goes", "too many users"],
)
def test_a_claim_that_cannot_be_the_pods_is_refused_by_name(found: Json, words: str):
    against = next_write(found, wanted(), NOW)
    assert isinstance(against, Reason)
    assert against.code is Code.CLAIM_CONFLICT
    assert against.detail == f"claim claim: {words}"


def test_a_pod_joins_a_claim_that_has_its_devices_already_whoever_allocated_them():
    joins = wanted()
    found = claim(allocation={"devices": {}}, reservedFor=[OTHER])
    write = next_joining(found, joins, node())
    assert write == Write("status", held(status={"reservedFor": [OTHER, POD]}))
    assert next_joining(claim(allocation={"devices": {}}, reservedFor=[POD]), joins, node()) is None


@pytest.mark.parametrize(
    ("term", "reaches"),
    [
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]}]}, False),
        ({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}, True),
        ({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r2"]}]}, False),
    ],
    ids=["its node", "another node", "any other node", "its rack", "another rack"],
)
def test_a_pod_joins_a_claim_only_on_a_node_where_its_devices_can_be_had(term: Json, reaches: bool):
    allocation = {"devices": {}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    found = next_joining(claim(allocation=allocation), wanted(), node(rack="r1"))
    assert isinstance(found, Write) is reaches
    if isinstance(found, Reason):
        assert found.detail == "claim claim: its devices cannot be had on node node-a"


def test_a_claim_that_has_lost_its_devices_is_joined_by_nobody():
    against = next_joining(claim(), wanted(), node())
    assert isinstance(against, Reason)
    assert against.detail == "claim claim: no device was chosen for it, and it has none any more"
    full = claim(allocation={"devices": {}}, reservedFor=[{"uid": str(n)} for n in range(256)])
    assert "256 pods use it" in next_joining(full, wanted(), node()).detail  # type: ignore[union-attr]


# -- what an allocation holds


def test_a_share_has_an_identity_of_its_own_that_every_try_writes_again():
    shared = AllocatedDevice({"name": "gpu-0", "allowMultipleAllocations": True})
    part = drawn(capacity=(("memory", 1500),))
    (one, two) = results(wanted(part, part, gpu_0=shared), ONE)
    assert one["consumedCapacity"] == {"memory": "1500m"}
    assert one["shareID"] == share_id(RUN, 0, "gpu", 0) != two["shareID"]
    assert len(one["shareID"].replace("-", "")) == 32


def test_admin_access_takes_no_share():
    shared = AllocatedDevice({"name": "gpu-0", "allowMultipleAllocations": True})
    (one,) = results(wanted(drawn(admin=True), gpu_0=shared), ONE)
    assert one == {"request": "one", "driver": DRIVER, "pool": "node-a", "device": "gpu-0", "adminAccess": True}


def test_conditions_are_the_devices_and_tolerations_the_requests():
    device = AllocatedDevice({"name": "gpu-0", "bindingConditions": ["up"], "bindingFailureConditions": ["broken"]})
    tolerations = [{"key": "sick", "operator": "Exists"}]
    request = {"name": "one", "exactly": {"deviceClassName": CLASS, "tolerations": tolerations}}
    (one,) = results(wanted(gpu_0=device), request)
    assert one["bindingConditions"] == ["up"]
    assert one["bindingFailureConditions"] == ["broken"]
    assert one["tolerations"] == tolerations


def test_parameters_of_classes_come_before_those_of_the_claim_and_others_choices_have_none():
    requests = [EITHER, {"name": "two", "exactly": {"deviceClassName": "small"}}]
    found = claim(requests=requests)
    found["spec"]["devices"]["config"] = [
        opaque({"for": "all"}),
        opaque({"for": "one"}, "one"),
        opaque({"for": "large"}, "one/large"),
        opaque({"for": "small"}, "one/small"),
    ]
    classes = tuple(device_class(name, opaque({"class": name})) for name in ("large", "small"))
    devices = (drawn(request="one/small"), drawn("gpu-1", request="two"))
    config = allocation(wanted(*devices, classes=classes), found)["devices"]["config"]
    assert config == [
        {"source": "FromClass", "requests": ["one/small", "two"]} | opaque({"class": "small"}),
        {"source": "FromClaim"} | opaque({"for": "all"}),
        {"source": "FromClaim"} | opaque({"for": "one"}, "one"),
        {"source": "FromClaim"} | opaque({"for": "small"}, "one/small"),
    ]


def test_a_chosen_alternative_is_named_and_exactly_one_is_not():
    small = wanted(drawn(request="one/small"), classes=(device_class("small"),))
    assert results(small, EITHER)[0]["request"] == "one/small"
    assert results(wanted(drawn(request="one/only")), ONE)[0]["request"] == "one"


def test_devices_of_the_network_are_good_where_their_slices_say():
    term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}
    far = AllocatedDevice({"name": "gpu-0"}, False, {"nodeSelectorTerms": [term]})
    everywhere = AllocatedDevice({"name": "gpu-1"}, False)
    both = wanted(drawn("gpu-0"), drawn("gpu-1"), gpu_0=far, gpu_1=everywhere)
    assert allocation(both, claim())["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert "nodeSelector" not in allocation(wanted(drawn("gpu-1"), gpu_1=everywhere), claim())


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (replace(wanted(), published={}), "device gpu.example.com/node-a/gpu-0 is published no more"),
        (replace(wanted(), classes={}), f"the cluster has no DeviceClass {CLASS}"),
        (wanted(drawn(request="none")), "it has no request none"),
    ],
    ids=["device", "class", "request"],
)
def test_what_is_gone_since_the_decision_refuses_the_claim(of: ClaimReservation, words: str):
    against = next_write(protected(claim(), RUN), of, NOW)
    assert isinstance(against, Reason)
    assert against.detail == f"claim claim: {words}"


# -- ready devices


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({}, "gpu.example.com/node-a/gpu-0"),
        ({"up": "False"}, "gpu.example.com/node-a/gpu-0"),
        ({"up": "True", "linked": "True"}, ""),
        ({"up": "True", "linked": "True", "broken": "True"}, Code.DEVICE_NOT_READY),
    ],
    ids=["nothing said", "not yet", "ready", "failed"],
)
def test_a_device_is_ready_once_its_driver_says_so(conditions: dict[str, str], found: str | Code):
    device = AllocatedDevice(
        {"name": "gpu-0", "bindingConditions": ["up", "linked"], "bindingFailureConditions": ["broken"]}
    )
    there = allocated(wanted(gpu_0=device))
    told = [{"type": name, "status": status} for name, status in conditions.items()]
    there["status"]["devices"] = [{"driver": DRIVER, "pool": "node-a", "device": "gpu-0", "conditions": told}]
    unready = find_unready(there)
    assert (unready.code if isinstance(unready, Reason) else unready) == found


# -- and back


def test_all_is_undone_in_two_writes_and_nothing_is_left():
    first = next_undo(allocated(), "u0", RUN)
    assert first == Write("status", held(status={"reservedFor": None, "allocation": None}))
    second = next_undo(protected(claim(), RUN), "u0", RUN)
    assert second == Write("metadata", held(finalizers=None, annotations={RUN_ANNOTATION: None}))
    assert next_undo(claim(), "u0", RUN) is None


def test_what_somebody_else_allocated_keeps_its_devices_when_its_last_pod_leaves():
    write = next_undo(claim(allocation={"devices": {}}, reservedFor=[POD]), "u0", RUN)
    assert write == Write("status", held(status={"reservedFor": None}))
    assert next_undo(claim(allocation={"devices": {}}), "u0", RUN) is None


def test_others_keep_a_claim_that_one_pod_leaves():
    write = next_undo(allocated(None, None, POD, OTHER), "u0", RUN)
    assert write == Write("status", held(status={"reservedFor": [OTHER]}))


@pytest.mark.parametrize(
    "found",
    [
        allocated(None, None, OTHER),
        protected(claim()) | {"status": {"allocation": {"devices": {}}}},
        protected(claim()),
        protected(claim(), f"{JOB}-2") | {"status": {"allocation": {"devices": {}}, "reservedFor": [POD]}},
    ],
    ids=["others use it", "allocated for nobody", "another scheduler's finalizer", "a later attempt has it"],
)
def test_what_is_not_this_runs_stays(found: Json):
    assert next_undo(found, "u0", RUN) is None


def node(**labels: str) -> Node:
    return empty_node(node_seen("node-a", labels=labels))


def held(status: Json | None = None, **meta: Any) -> Json:
    version = {"uid": "uid-of-claim", "resourceVersion": "7"}
    return {"metadata": version | meta} | ({} if status is None else {"status": status})


def allocation(of: ClaimReservation, found: Json) -> Json:
    made = allocation_of(found, of, NOW)
    assert not isinstance(made, Reason), made
    return made


def results(of: ClaimReservation, *requests: Json) -> list[Json]:
    found: list[Json] = allocation(of, claim(requests=list(requests)))["devices"]["results"]
    return found
