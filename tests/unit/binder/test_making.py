"""How the pods of a run are made while the API server refuses some of the calls."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.binder.cluster_world import World, train


async def test_a_pod_that_is_made_is_not_asked_for_again_because_another_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a large gang would be made only once every call of it succeeds at the same time."""
    async with World() as world:
        asked: Counter[str] = Counter()
        create = world.core.create

        def counted(resource: str, namespace: str, obj: Any) -> Any:
            asked[obj["metadata"]["name"]] += resource == "pods"
            return create(resource, namespace, obj)

        monkeypatch.setattr(world.core, "create", counted)
        world.core.faults.answer("create", 500, count=2)
        await world.submit(spec=train(replicas=6))
        assert sorted((+asked).values()) == [1, 1, 1, 1, 2, 2]
