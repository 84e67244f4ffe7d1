"""A node of the API as a fact: exact quantities, and nothing placed on what cannot be read."""

from typing import Any

import pytest

from tessera.binder.decide.nodes import node_gone, node_seen
from tessera.binder.decide.told_data import unread_words
from tessera_schemas.cluster.device_vendors import GPU_RESOURCES
from tessera_schemas.config import Pool
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.reasons import Code
from tests.builders import GIB
from tests.unit.binder.api_nodes import api_node


def test_a_node_is_what_it_can_give() -> None:
    node = api_node(
        metadata={
            "labels": {"tessera.io/pool": "blue", "tessera.io/gpu-model": "h100", "zone": "a"},
            "annotations": {"tessera.io/device-profile": "plugin"},
        },
        spec={"taints": [{"key": "own", "effect": "NoSchedule"}]},
    )
    seen = node_seen(node)
    assert (seen.cpu_milli, seen.memory_bytes, seen.pods, seen.gpus) == (63_920, 64 * GIB, 110, 8)
    assert (seen.pool, seen.gpu_model, seen.device_profile, seen.ready) == ("blue", "h100", "plugin", True)
    assert seen.labels["zone"] == "a"
    assert [(taint.key, taint.value, taint.effect) for taint in seen.taints] == [("own", "", "NoSchedule")]


def test_a_node_reports_further_devices_and_the_findings_of_feature_discovery() -> None:
    found = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    own = {"nvidia.com/mig-1g.10gb": "7", "ephemeral-storage": "1Ti", "hugepages-2Mi": "0", "attachable/x": "39"}
    seen = node_seen(api_node(room={"rdma/hca": "2", **own}, metadata={"labels": found}))
    assert seen.devices == {"rdma/hca": 2, "attachable/x": 39}
    assert (seen.gpu_model, seen.gpu_memory_bytes) == ("NVIDIA-H100-80GB-HBM3", 81_559 * 2**20)
    ours = {**found, "tessera.io/gpu-model": "h100"}
    assert node_seen(api_node(metadata={"labels": ours})).gpu_model == "h100"


def test_a_node_reports_its_capacity_of_devices_of_which_fewer_can_be_allocated() -> None:
    full = {"cpu": "64", "nvidia.com/gpu": "8", "rdma/hca": "2", "ephemeral-storage": "2Ti"}
    away = api_node(room={"nvidia.com/gpu": "0", "rdma/hca": "2"}, status={"capacity": full})
    assert (node_seen(away).gpus, node_seen(away).capacity) == (0, {"nvidia.com/gpu": 8})
    assert node_seen(api_node(room={"rdma/hca": "2"}, status={"capacity": full})).capacity == {}


SHARED = {"nvidia.com/gpu.product": "NVIDIA-A10-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
NOT_WHOLE = {
    "each GPU is offered several times": ({"nvidia.com/gpu.replicas": "4"}, "offers each GPU 4 times"),
    "the product says that it is shared": ({"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}, "several times"),
    "they are instances of a cut GPU": (
        {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-SXM4-80GB-MIG-1g.10gb"},
        "instances of A100-SXM4-80GB-MIG-1g.10gb",
    ),
    "GKE says that containers share each": (
        {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"},
        "offers each GPU 4 times",
    ),
    "GKE says that they are instances": ({"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}, "instances of 1g.5gb"),
    "there are fewer GPUs": ({"nvidia.com/gpu.count": "2"}, "offers 8 of nvidia.com/gpu and has 2 GPUs"),
}


@pytest.mark.parametrize(("labels", "why"), NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_what_is_offered_as_gpus_and_is_not_is_counted_as_none_and_said(labels: dict[str, str], why: str) -> None:
    seen = node_seen(api_node(metadata={"labels": labels}), pools=(Pool(name="default", device_profile="whole"),))
    assert (seen.ready, seen.gpus) == (False, 0)
    assert seen.trouble is not None
    assert seen.trouble.code is Code.NOT_WHOLE_GPUS
    assert why in seen.trouble.detail


CUT = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "pending"}


@pytest.mark.parametrize("state", ["pending", "rebooting"])
@pytest.mark.parametrize("profile", ["whole", "mig"])
def test_a_node_whose_gpus_are_being_cut_takes_nothing_new_and_keeps_what_it_shows(state: str, profile: str) -> None:
    labels = CUT | {"nvidia.com/mig.config.state": state, "tessera.io/device-profile": profile}
    room = {"nvidia.com/mig-1g.5gb": "7"} if profile == "mig" else {"nvidia.com/gpu": "8"}
    seen = node_seen(api_node(metadata={"labels": labels | {"tessera.io/mig-geometry": "40gb"}}, room=room))
    assert seen.trouble is not None
    assert (seen.ready, seen.trouble.code) == (False, Code.GPUS_BEING_CUT)
    assert seen.trouble.detail == f"nvidia.com/mig.config 'all-1g.10gb' is {state}"
    assert seen.gpus == {"whole": 8, "mig": 1}[profile]


def test_while_gpus_are_cut_the_silence_of_their_plugin_is_no_fault_of_the_node() -> None:
    labels = CUT | {"tessera.io/device-profile": "mig"}
    seen = node_seen(api_node(metadata={"labels": labels}, room={}))
    assert seen.trouble is not None
    assert seen.trouble.code is Code.GPUS_BEING_CUT


@pytest.mark.parametrize("state", ["success", "failed", ""])
def test_once_the_change_has_ended_what_the_plugin_offers_counts(state: str) -> None:
    seen = node_seen(api_node(metadata={"labels": CUT | {"nvidia.com/mig.config.state": state}}))
    assert (seen.ready, seen.gpus, seen.trouble) == (True, 8, None)


WHOLE = [
    {},
    {"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.count": "8", "nvidia.com/mig.strategy": "none"},
    {"nvidia.com/gpu.count": "9"},  # one is out of order
    {"nvidia.com/gpu.replicas": "0", "nvidia.com/gpu.count": "many", "nvidia.com/mig.strategy": "single"},
]


@pytest.mark.parametrize("labels", WHOLE, ids=str)
def test_whole_gpus_are_counted_whatever_else_is_said(labels: dict[str, str]) -> None:
    seen = node_seen(api_node(metadata={"labels": labels}))
    assert (seen.ready, seen.gpus, seen.trouble) == (True, 8, None)


def test_instances_that_are_offered_several_times_are_nobodys_own() -> None:
    labels = {"tessera.io/device-profile": "mig", "nvidia.com/gpu.memory": "81920"}
    room = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "28"}
    for times, gpus in (("1", 4), ("4", 0)):
        shared = {"nvidia.com/mig-1g.10gb.replicas": times, "nvidia.com/mig-1g.10gb.product": "A100-MIG-1g.10gb"}
        seen = node_seen(api_node(room=room, metadata={"labels": labels | shared}))
        assert (seen.gpus, seen.trouble is None) == (gpus, bool(gpus))
    assert seen.trouble is not None
    assert (seen.trouble.code, "each instance of 1g.10gb 4 times" in seen.trouble.detail) == (Code.NOT_WHOLE_GPUS, True)


def test_a_node_without_gpus_to_offer_is_fine_whatever_its_labels_say() -> None:
    seen = node_seen(api_node(room={"nvidia.com/gpu": "0"}, metadata={"labels": SHARED}))
    assert (seen.ready, seen.gpus) == (True, 0)


SLICED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
MPS = {**SLICED, "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/mps.capable": "true"}
REPLICAS = {
    "labels of before MPS": (SLICED, {}, "time-slicing"),
    "time-slicing": ({**SLICED, "nvidia.com/gpu.sharing-strategy": "time-slicing"}, {}, "time-slicing"),
    "MPS": (MPS, {}, "mps"),
    "MPS under another name": (MPS, {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "8"}, "mps"),
}


@pytest.mark.parametrize(("labels", "room", "profile"), REPLICAS.values(), ids=REPLICAS)
def test_replicas_are_shares_of_as_many_gpus_as_there_are(
    labels: dict[str, str], room: dict[str, str], profile: str
) -> None:
    seen = node_seen(api_node(room=room, metadata={"labels": labels}))
    assert (seen.ready, seen.gpus, seen.device_profile, seen.share_milli) == (True, 2, profile, 250)
    assert (seen.gpu_resource, seen.gpu_default) == ("nvidia.com/gpu.shared" if room else "", True)
    before = node_seen(api_node(room=room, metadata={"labels": labels}), known=GPU_RESOURCES[:1])
    assert (before.gpus, before.device_profile) == (0, "whole")


def test_a_pool_may_say_that_gke_shares_the_time_of_its_gpus() -> None:
    node = api_node(metadata={"labels": {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"}})
    seen = node_seen(node, pools=(Pool(name="default", device_profile="time-slicing"),))
    assert (seen.ready, seen.gpus, seen.share_milli) == (True, 2, 250)


def test_replicas_of_others_take_the_fewest_gpus_that_they_may_be_of() -> None:
    seen = node_seen(api_node(metadata={"labels": SLICED}), Others(pods=5, gpus=5))
    assert seen.others.gpus == 2
    room = {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "8"}
    renamed = Others(pods=1, devices={"nvidia.com/gpu.shared": 1})
    assert node_seen(api_node(room=room, metadata={"labels": MPS}), renamed).others == Others(pods=1, gpus=1)


NO_REPLICAS = {
    "MPS does not run": ({**MPS, "nvidia.com/mps.capable": "false"}, "", Code.NOT_WHOLE_GPUS),
    "MPS is said, and does not run": ({**MPS, "nvidia.com/mps.capable": "false"}, "mps", Code.DEVICE_UNKNOWN),
    "another strategy is said": (MPS, "time-slicing", Code.DEVICE_CONFLICT),
    "nobody says how many": ({}, "time-slicing", Code.DEVICE_UNKNOWN),
    "thousandths do not make up one GPU": (
        {"nvidia.com/gpu.replicas": "48", "nvidia.com/gpu.count": "2"},
        "",
        Code.DEVICE_UNKNOWN,
    ),
    "they are of instances": ({**SLICED, "nvidia.com/gpu.product": "A100-MIG-1g.5gb-SHARED"}, "", Code.NOT_WHOLE_GPUS),
}


@pytest.mark.parametrize(("labels", "profile", "code"), NO_REPLICAS.values(), ids=NO_REPLICAS)
def test_replicas_that_are_not_known_for_certain_serve_nobody(labels: dict[str, str], profile: str, code: Code) -> None:
    named = {"tessera.io/device-profile": profile} if profile else {}
    seen = node_seen(api_node(metadata={"labels": labels | named}))
    assert seen.trouble is not None
    assert (seen.ready, seen.trouble.code) == (False, code)


@pytest.mark.parametrize("profile", ["shares", "plugin"])
def test_where_the_profile_owns_the_gpus_their_replicas_are_no_more_gpus(profile: str) -> None:
    labels = {**SHARED, "tessera.io/device-profile": profile}
    seen = node_seen(api_node(metadata={"labels": labels}))
    assert (seen.ready, seen.gpus, seen.gpu_model) == (True, 2, "NVIDIA-A10")


def test_gpu_memory_that_is_no_number_is_not_known_and_the_node_stays_ready() -> None:
    seen = node_seen(api_node(metadata={"labels": {"nvidia.com/gpu.memory": "lots"}}))
    assert (seen.ready, seen.gpu_memory_bytes) == (True, 0)


def test_a_part_of_a_thousandth_or_of_a_byte_is_never_promised() -> None:
    seen = node_seen(api_node(room={"cpu": "1999999u", "memory": "1500m"}))
    assert (seen.cpu_milli, seen.memory_bytes) == (1999, 1)


NOT_READY = [
    ("it says so", api_node(conditions=[{"type": "Ready", "status": "False"}])),
    ("nobody knows", api_node(conditions=[{"type": "Ready", "status": "Unknown"}])),
    ("it says nothing", api_node(conditions=[])),
    ("an operator cordoned it", api_node(spec={"unschedulable": True})),
]


@pytest.mark.parametrize("node", [case[1] for case in NOT_READY], ids=[case[0] for case in NOT_READY])
def test_a_node_is_not_ready_and_keeps_its_size(node: dict[str, Any]) -> None:
    seen = node_seen(node)
    assert (seen.ready, seen.gpus) == (False, 8)


def test_a_node_is_cordoned_only_while_its_kubelet_answers() -> None:
    assert node_seen(api_node(spec={"unschedulable": True})).cordoned
    silent = api_node(spec={"unschedulable": True}, conditions=[{"type": "Ready", "status": "Unknown"}])
    assert not node_seen(silent).cordoned
    assert not node_seen(api_node()).cordoned


PROFILE = {"tessera.io/device-profile": "magic"}
UNREADABLE = [
    ("a quantity that is none", api_node(room={"cpu": "many"}), "many"),
    ("more GPUs than there can be", api_node(room={"nvidia.com/gpu": "65"}), "65"),
    ("less than nothing", api_node(room={"memory": "-1"}), "'-1' is not a quantity"),
    ("a device profile that nobody knows", api_node(metadata={"annotations": PROFILE}), "magic"),
    ("a pool that is no name", api_node(metadata={"labels": {"tessera.io/pool": "Not A Name"}}), "'Not A Name'"),
    ("a taint that is none", api_node(spec={"taints": [{"key": "own", "effect": "Sometimes"}]}), "'Sometimes'"),
    ("a number without end", api_node(room={"cpu": "1e999999999"}), "1e999999999"),
]


@pytest.mark.parametrize(("node", "said"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE])
def test_a_node_that_cannot_be_read_is_not_ready_and_says_why(node: dict[str, Any], said: str) -> None:
    seen = node_seen(node)
    assert seen.trouble is not None
    assert seen == NodeSeen(kind="node_seen", name="node-a", ready=False, trouble=seen.trouble)
    assert said in seen.trouble.sentence()
    assert seen.trouble.field.startswith("nodes.node-a")


def test_a_node_that_says_nothing_of_itself_has_nothing() -> None:
    seen = node_seen({"metadata": {"name": "node-a"}})
    assert (seen.ready, seen.cpu_milli, seen.gpus, seen.pods) == (False, 0, 0, 0)


def test_a_node_that_is_gone_is_said_to_be() -> None:
    assert (node_gone("node-a").gone, node_gone("node-a").ready) == (True, False)


def test_words_about_data_sets_that_count_for_nothing_are_named_as_they_stand() -> None:
    says = {"tessera.io/datasets": "vision/photos, Maps,, a/b/c ,ok"}
    assert unread_words({}, says) == ("Maps", "a/b/c")
    assert unread_words({"fluid.io/s-lab-corpus": "true"}, {}) == ()
    many = ",".join(f"d{number:03}" for number in range(257))
    assert unread_words({}, {"tessera.io/datasets": many}) == ("*/d256",)


def test_a_node_reports_the_data_sets_of_its_annotation_and_of_fluids_labels() -> None:
    kept = {"fluid.io/s-lab-corpus": "true", "fluid.io/s-h-alluxio-t-lab-corpus": "6B", "fluid.io/dataset-num": "1"}
    seen = node_seen(
        api_node(metadata={"labels": kept, "annotations": {"tessera.io/datasets": "vision/photos, maps,,A"}})
    )
    assert seen.datasets == ("*/maps", "lab/corpus", "vision/photos")
    # Namespace and data set may have hyphens both: a label is read in each way that it can be meant.
    seen = node_seen(api_node(metadata={"labels": {"fluid.io/s-team-a-corpus": "true"}}))
    assert seen.datasets == ("team-a/corpus", "team/a-corpus")
