"""Which GPUs a node says it has, by its device profile; what contradicts itself takes nothing new and says why."""

from typing import Any

import pytest

from tessera.binder.decide.nodes import node_seen
from tessera_schemas.config import Pool
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.reasons import Code
from tests.unit.binder.api_nodes import api_node

A, B = "GPU-aaaa", "GPU-bbbb"
PROFILE = "tessera.io/device-profile"
UUIDS = "tessera.io/gpu-uuids"
HAMI = "hami.io/node-nvidia-register"
NO_PLUGIN = {"nvidia.com/gpu": "0"}


def seen(profile: str = "", room: Any = None, pools: tuple[Pool, ...] = (), **said: str) -> NodeSeen:
    """`said` are annotations: by `uuids` and `hami`; `label` and `memory` are labels."""
    others = Others(gpus=int(said.pop("foreign", "0")))
    keys = {"uuids": UUIDS, "hami": HAMI}
    labels = {"tessera.io/mig-geometry": said.get("geometry"), "nvidia.com/gpu.memory": said.get("memory")}
    labels |= {PROFILE: said.get("label"), "tessera.io/pool": said.get("pool")}
    notes = {keys[name]: text for name, text in said.items() if name in keys} | ({PROFILE: profile} if profile else {})
    metadata = {"labels": {key: value for key, value in labels.items() if value}, "annotations": notes}
    return node_seen(api_node(metadata=metadata, room=room or {}), others, pools)


def hami(*cards: str, mode: str = "hami-core", healthy: str = "true") -> str:
    return (
        "["
        + ",".join(
            f'{{"id":"{uuid}","count":10,"devmem":81920,"devcore":100,"type":"H100","mode":"{mode}","health":{healthy}}}'
            for uuid in cards
        )
        + "]"
    )


# -- whose devices they are ---------------------------------------------------------------------------------------


def test_a_node_of_which_nobody_says_anything_has_the_stock_plugin() -> None:
    assert (seen().device_profile, seen().gpus, seen().trouble) == ("whole", 8, None)


def test_the_pool_says_the_profile_of_its_nodes() -> None:
    pools = (Pool(name="default"), Pool(name="small", device_profile="shares"))
    assert seen(pool="small", pools=pools).device_profile == "shares"
    assert seen(pools=pools).device_profile == "whole"
    assert seen("shares", pool="small", pools=pools).ready


@pytest.mark.parametrize(
    "node",
    [
        seen("plugin", pools=(Pool(name="default", device_profile="shares"),)),
        seen(label="plugin", pools=(Pool(name="default", device_profile="shares"),)),
        seen("plugin", label="shares"),
    ],
    ids=["annotation and pool", "label and pool", "annotation and label"],
)
def test_a_node_that_contradicts_its_pool_or_itself_takes_no_work_until_resolved(node: NodeSeen) -> None:
    assert not node.ready
    assert node.trouble is not None
    assert node.trouble.code is Code.DEVICE_CONFLICT
    assert "says plugin" in node.trouble.detail
    assert "says shares" in node.trouble.detail


# -- cards by UUID ------------------------------------------------------------------------------------------------


def test_a_node_without_a_plugin_has_the_gpus_that_it_names() -> None:
    node = seen("visible-devices", NO_PLUGIN, uuids=f"{B}, {A}")
    assert (node.ready, node.gpus, node.gpu_uuids) == (True, 2, (B, A))


def test_hamis_plugin_says_its_cards_and_their_memory_in_whatever_order() -> None:
    for text in (hami(A, B), hami(B, A), f"{B},10,81920,100,NVIDIA-H100,0,true:{A},10,81920,100,NVIDIA-H100,0,true:"):
        node = seen("hami", {"nvidia.com/gpu": "20"}, hami=text)
        assert (node.ready, node.gpus, node.gpu_uuids) == (True, 2, (A, B))
        assert node.gpu_memory_bytes == 81920 * 2**20


TROUBLED = {
    "no UUID is said": (seen("visible-devices", NO_PLUGIN), Code.DEVICE_UNKNOWN),
    "a UUID is said twice": (seen("visible-devices", NO_PLUGIN, uuids=f"{A},{A}"), Code.DEVICE_CONFLICT),
    "a stock plugin hands out the same cards": (seen("visible-devices", uuids=A), Code.DEVICE_CONFLICT),
    "pods that are not ours have cards": (seen("hami", hami=hami(A), foreign="1"), Code.DEVICE_CONFLICT),
    "HAMi's plugin says nothing": (seen("hami"), Code.DEVICE_UNKNOWN),
    "what HAMi's plugin says cannot be read": (seen("hami", hami="[{}]"), Code.DEVICE_UNKNOWN),
    "HAMi's old form is cut off": (seen("hami", hami=f"{A},10"), Code.DEVICE_UNKNOWN),
    "HAMi cuts its GPUs into instances": (seen("hami", hami=hami(A, mode="mig")), Code.DEVICE_CONFLICT),
    "HAMi says a card is ill": (seen("hami", hami=hami(A, B, healthy="false")), Code.DEVICE_UNHEALTHY),
    "nobody made instances": (seen("mig", geometry="80gb"), Code.DEVICE_UNKNOWN),
    "instances of other GPUs than it says": (
        seen("mig", {"nvidia.com/mig-1g.18gb": "7"}, geometry="80gb"),
        Code.DEVICE_CONFLICT,
    ),
    "instances that several kinds of GPU have": (seen("mig", {"nvidia.com/mig-1g.10gb": "2"}), Code.DEVICE_CONFLICT),
}


@pytest.mark.parametrize(("node", "code"), TROUBLED.values(), ids=TROUBLED)
def test_a_node_that_does_not_say_which_devices_it_has_takes_nothing_new(node: NodeSeen, code: Code) -> None:
    assert not node.ready
    assert node.trouble is not None
    assert (node.trouble.code, node.trouble.field) == (code, "nodes.node-a.devices")


def test_what_is_no_uuid_makes_a_node_that_cannot_be_read() -> None:
    node = seen("visible-devices", NO_PLUGIN, uuids="all")
    assert node == NodeSeen(kind="node_seen", name="node-a", ready=False, trouble=node.trouble)
    assert node.trouble is not None
    assert "all" in node.trouble.sentence()


# -- instances ----------------------------------------------------------------------------------------------------

CUT = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.5gb.me": "1", **NO_PLUGIN}


@pytest.mark.parametrize("said", [{"geometry": "80gb"}, {"memory": "81559"}], ids=["by label", "by memory"])
def test_a_node_says_how_many_instances_were_made_and_so_on_how_many_gpus(said: dict[str, str]) -> None:
    node = seen("mig", CUT, **said)
    assert node.mig_instances == {"1g.10gb": 7, "3g.40gb": 2}
    assert (node.ready, node.mig_geometry, node.gpus) == (True, "80gb", 2)


def test_whole_gpus_beside_the_instances_are_not_ours_and_no_loss_to_them() -> None:
    node = seen("mig", {**CUT, "nvidia.com/gpu": "2"}, memory="81559", foreign="2")
    assert (node.ready, node.gpus, node.others.gpus) == (True, 2, 0)
