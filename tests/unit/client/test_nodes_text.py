"""A node that takes nothing new says so where one looks first, and says why where one looks next."""

from typing import Any

from tessera.client.cluster.findings import awaited
from tessera.client.commands.shard.views import NODES
from tessera.client.views.overview import node_line
from tessera.client.views.rendering import table
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import NodeView

WHY = PublicReason(code="DeviceConflict", field="nodes.a.devices", detail="pools.x.device_profile says mig, …")


def test_a_nodes_trouble_is_its_state_and_the_wide_table_says_what_it_is() -> None:
    sick, well = NodeView(name="a", pool="x", ready=False, trouble=WHY), NodeView(name="b", pool="x", ready=True)
    short = table(NODES, [sick, well])
    assert "DeviceConflict" in short[1]
    assert "ready" in short[2]
    assert "says mig" not in "".join(short)
    assert "pools.x.device_profile says mig" in table(NODES, [sick, well], wide=True)[1]


def test_a_cordoned_node_is_cordoned_and_not_called_not_ready() -> None:
    cordoned, silent = (
        NodeView(name="a", pool="x", ready=False, cordoned=True),
        NodeView(name="b", pool="x", ready=False),
    )
    short = table(NODES, [cordoned, silent])
    assert "cordoned" in short[1]
    assert "not ready" not in short[1]
    assert "not ready" in short[2]
    assert node_line([cordoned, silent]).endswith("nodes 0 ready, 1 cordoned, 1 not ready")


def told(**more: Any) -> list[str]:
    return [found.line() for found in awaited(NodeView(name="n-0", pool="x", ready=False, gpus=7, **more), 725_000)]


def test_a_silent_node_that_holds_stopped_runs_is_told_with_since_when_and_the_command_that_lets_them_go() -> None:
    (line,) = told(waiting_runs=2, away_since_ts=5_000)
    assert "has not answered for 12m" in line
    assert "`kubectl taint nodes n-0 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`" in line


def test_what_an_operator_has_to_say_or_mend_is_told_of_each_node_and_else_nothing() -> None:
    assert told() == []
    assert "`tessera drain n-0 --evict`" in told(held_back_runs=3)[0]
    assert "1 GPUs fewer than its runs hold" in told(missing_gpus=1)[0]


def test_a_sick_node_that_was_not_turned_off_is_told_with_the_ways_out() -> None:
    (line,) = told(fence="failed: no such machine")
    assert "is sick and to be turned off; the fencing webhook: failed: no such machine" in line
    assert "`tessera undrain n-0`" in line
    assert told(fence="asked") == []
