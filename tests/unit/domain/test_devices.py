"""A slot goes on meaning the same device as long as a run or an earmark holds some of its node."""

from typing import Any

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node, role_need
from tessera.domain.devices.slots import while_held
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Code
from tests.builders import node_seen, placement, role

CARDS = {"device_profile": "visible-devices", "gpu_uuids": ("GPU-a", "GPU-b"), "gpus": 2}
CUT = {"device_profile": "mig", "mig_geometry": "40gb", "mig_instances": {"1g.5gb": 7}, "gpus": 1}
STOCK = {"gpus": 4}


def held(**seen: Any) -> Node:
    return empty_node(node_seen(**seen)).taking(role_need(role()).need, placement(devices=(0,)), 1)


CHANGES = {
    "another profile": (STOCK, STOCK | {"device_profile": "shares"}),
    "another card": (CARDS, CARDS | {"gpu_uuids": ("GPU-a", "GPU-c")}),
    "cards in another order": (CARDS, CARDS | {"gpu_uuids": ("GPU-b", "GPU-a")}),
    "a card fewer": (CARDS, CARDS | {"gpu_uuids": ("GPU-b",), "gpus": 1}),
    "other instances": (CUT, CUT | {"mig_instances": {"3g.20gb": 2}}),
    "no instances": (CUT, CUT | {"mig_instances": {}, "mig_geometry": ""}),
}


@pytest.mark.parametrize(("before", "now"), CHANGES.values(), ids=CHANGES)
def test_a_node_whose_devices_change_under_a_run_keeps_the_old_ones_and_takes_no_work(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    was = held(**before)
    kept = while_held(node_seen(**now, cpu_milli=5), was)
    assert kept.trouble is not None
    assert (kept.ready, kept.trouble.code, kept.cpu_milli) == (False, Code.DEVICES_CHANGED, 5)
    same = empty_node(kept)
    names = ("device_profile", "gpus", "gpu_uuids", "mig_geometry", "mig_instances")
    assert all(getattr(same, name) == getattr(was, name) for name in names)
    assert while_held(kept, was) == kept


@pytest.mark.parametrize(("before", "now"), CHANGES.values(), ids=CHANGES)
def test_a_node_that_nobody_holds_is_simply_what_it_is_now(before: dict[str, Any], now: dict[str, Any]) -> None:
    seen = node_seen(**now)
    assert while_held(seen, empty_node(node_seen(**before))) == seen
    assert while_held(seen, None) == seen


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_slots_that_are_only_numbers_come_and_go(gpus: int) -> None:
    seen = node_seen(gpus=gpus)
    assert while_held(seen, held(**STOCK)) == seen


def test_a_node_that_is_gone_and_back_has_the_devices_that_its_runs_hold() -> None:
    was = held(**CARDS)
    gone = while_held(NodeSeen(kind="node_seen", name="node-a", gone=True, ready=False), was)
    assert (gone.gone, gone.trouble, gone.gpus, gone.gpu_uuids) == (True, None, 0, ("GPU-a", "GPU-b"))
    away = empty_node(gone).taking(role_need(role()).need, placement(devices=(0,)), 1)
    assert while_held(node_seen(**CARDS), away) == node_seen(**CARDS)


def test_a_trouble_that_the_node_has_besides_is_the_one_that_is_said() -> None:
    seen = node_seen(**CARDS | {"gpu_uuids": (), "gpus": 0})
    troubled = seen.model_copy(update={"trouble": while_held(seen, held(**STOCK)).trouble, "device_profile": "hami"})
    assert while_held(troubled, held(**CARDS)).trouble == troubled.trouble
