"""A binder of this version beside a committer of the version before: it sends nothing that this one cannot read."""

import pytest

from tessera.scheduler import decide
from tessera_schemas.ledger import FORMAT
from tessera_schemas.shard.ledger_form import SUMS_FROM
from tests.unit.binder.cluster_world import World


@pytest.mark.parametrize("known", [SUMS_FROM - 1, FORMAT])
async def test_fields_that_came_later_are_sent_once_the_ledger_has_their_format(
    monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    monkeypatch.setattr(decide, "FORMAT", known)
    async with World() as world:
        assert world.state.format == known
        world.core.set_cordoned("node-a", True)
        world.core.set_device_plugins("node-b", False)
        await world.run(15)
        newest = {fact.name: fact for fact in world.said("node_seen")}
        later = known == FORMAT
        assert (newest["node-a"].cordoned, bool(newest["node-b"].capacity)) == (later, later)
        assert not newest["node-a"].ready
