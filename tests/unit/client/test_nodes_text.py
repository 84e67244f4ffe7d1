"""A node that takes nothing new says so where one looks first, and says why where one looks next."""

from tessera.client.commands.views import NODES
from tessera.client.rendering import table
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
