"""Groups that wait are looked at every ten seconds: what they amount to is worked out once, however many they are."""

from typing import Any, cast

import pytest

from tessera.binder.adoption import cache
from tessera.binder.adoption.decide.cluster_marks import ClusterMarks
from tessera.binder.workloads.port import Group
from tessera.binder.workloads.registry import group_of
from tessera.domain.state import State
from tests.unit.binder.adoption.adoption_world import user_pod

WAITING = 10_000


async def test_ten_thousand_waiting_pods_are_read_once_and_not_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(group: Group, *_: Any) -> Any:
        read.append(group.id)

    monkeypatch.setattr(cache, "spec_of", reading)
    adoptions = cache.Adoptions(cast(Any, None), cast(Any, None), ClusterMarks(State()), State())
    pods = [user_pod(f"waits-{number}") for number in range(WAITING)]
    for number, pod in enumerate(pods):
        pod["metadata"] |= {"namespace": "lab", "uid": str(number)}
    groups = [cast(Group, group_of(pod, {})) for pod in pods]
    for _ in range(2):
        for group, pod in zip(groups, pods, strict=True):
            await adoptions.of(group, [pod])
    assert len(read) == len(set(read)) == WAITING
