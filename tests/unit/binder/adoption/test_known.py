"""A group is worked out once for as long as nothing of it changes, and anew when anything does."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from tessera.binder.adoption import cache as known
from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.decide.cluster_marks import ClusterMarks
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.workloads.port import Group
from tessera.binder.workloads.registry import group_of
from tessera.domain.state import State
from tessera_schemas.base import Json
from tests.unit.binder.adoption.adoption_world import user_pod


class OneOwner:
    def __init__(self) -> None:
        self.owner: Json | None = None

    async def look(self, _: Any) -> Json | None:
        return self.owner


def pod(name: str, **more: Any) -> Json:
    made = user_pod(name, labels={"tessera.io/gang": "pair"}, notes={"tessera.io/gang-size": "1"}, **more)
    made["metadata"] |= {"uid": name, "namespace": "lab", "resourceVersion": "1"}
    return made


def group() -> Group:
    found = group_of(pod("a"), {})
    assert isinstance(found, Group)
    return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pods each reckoning was of."""
    counted: list[int] = []
    reckon: Callable[..., Any] = known.spec_of

    def counting(group: Group, pods: list[Json], size: int, owner: Json | None) -> Any:
        counted.append(len(pods))
        return reckon(group, pods, size, owner)

    monkeypatch.setattr(known, "spec_of", counting)
    return counted


def cached() -> Adoptions:
    return Adoptions(cast(Owners, OneOwner()), cast(VolumeClaims, None), ClusterMarks(State()), State())


async def test_the_same_pods_are_worked_out_once(looks: list[int]) -> None:
    adoptions, one = cached(), pod("a")
    assert await adoptions.of(group(), [one]) is await adoptions.of(group(), [one])
    assert looks == [1]


async def test_a_pod_that_changed_or_one_more_is_worked_out_anew(looks: list[int]) -> None:
    adoptions = cached()
    before = await adoptions.of(group(), [pod("a")])
    after = await adoptions.of(group(), [pod("a", gpus=2)])
    assert before != after
    await adoptions.of(group(), [pod("a"), pod("b")])
    assert looks == [1, 1, 2]


async def test_what_is_forgotten_is_worked_out_anew(looks: list[int]) -> None:
    adoptions, one = cached(), pod("a")
    await adoptions.of(group(), [one])
    adoptions.forget(group().id)
    await adoptions.of(group(), [one])
    assert looks == [1, 1]
