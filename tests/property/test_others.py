"""What pods take that Tessera does not manage counts as used, always, and comes back when they go."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.engine.placement.fits import count_bundles, fits, kind_of, placed_on
from tessera_schemas.facts import NodeSeen
from tessera_schemas.work.placement import Placement
from tests.property.shapes import others

HCA = "rdma/hca"


@dataclass(frozen=True)
class Books:
    """A node kept by hand: who holds what, and what others take."""

    seen: NodeSeen
    held: tuple[tuple[Need, Placement], ...] = ()

    @property
    def node(self) -> Node:
        made = empty_node(self.seen)
        for need, placement in self.held:
            made = made.taking(need, placement, 1)
        return made

    def gpus_unheld(self) -> int:
        held = {device for _, placement in self.held for device in placement.devices}
        return len(set(range(self.seen.gpus)) - held)

    def has_room(self, need: Need) -> bool:
        theirs, pods = self.seen.others, len(self.held)
        cpu = sum(other.cpu_milli for other, _ in self.held) + theirs.cpu_milli
        memory = sum(other.memory_bytes for other, _ in self.held) + theirs.memory_bytes
        hcas = sum(dict(other.devices).get(HCA, 0) for other, _ in self.held) + theirs.devices.get(HCA, 0)
        return (
            cpu + need.cpu_milli <= self.seen.cpu_milli
            and memory + need.memory_bytes <= self.seen.memory_bytes
            and pods + theirs.pods + 1 <= self.seen.pods
            and (not need.devices or hcas + dict(need.devices)[HCA] <= self.seen.devices.get(HCA, 0))
            and (not need.gpus or need.gpus <= self.gpus_unheld() - theirs.gpus)
        )


def seen(theirs: dict[str, Any]) -> NodeSeen:
    size = {"cpu_milli": 8000, "memory_bytes": 8, "pods": 6, "gpus": 4, "devices": {HCA: 3}}
    return NodeSeen.model_validate({"kind": "node_seen", "name": "a", **size, "others": theirs})


NEEDS = st.builds(
    Need,
    cpu_milli=st.integers(1, 3).map(lambda cores: cores * 1000),
    memory_bytes=st.integers(1, 3),
    gpus=st.integers(0, 3),
    devices=st.sampled_from(((), ((HCA, 1),))),
)
STEPS = st.lists(st.one_of(NEEDS, st.integers(0, 5), others()), max_size=12)


def after(books: Books, step: Need | int | dict[str, Any]) -> Books:
    """A pod of ours comes if it fits, or one leaves, or others take something else."""
    if isinstance(step, dict):
        return replace(books, seen=seen(step))
    if isinstance(step, int):
        return replace(books, held=tuple(one for at, one in enumerate(books.held) if at != step))
    if fits(step, books.node) is not None:
        return books
    placement = placed_on(books.node, step, len(books.held), "worker")
    return replace(books, held=(*books.held, (step, placement)))


@given(STEPS, NEEDS)
def test_a_pod_fits_exactly_when_it_does_beside_everything_that_is_there(steps: list[Any], need: Need) -> None:
    books = Books(seen({}))
    for step in steps:
        books = after(books, step)
    assert (fits(need, books.node) is None) is books.has_room(need)
    assert (count_bundles(kind_of((need,)), books.node) > 0) is books.has_room(need)


@given(STEPS, NEEDS)
def test_a_pod_gets_gpus_that_nobody_of_ours_holds_and_leaves_others_theirs(steps: list[Any], need: Need) -> None:
    books = Books(seen({}))
    for step in steps:
        books = after(books, step)
    if fits(need, books.node) is not None:
        return
    placement = placed_on(books.node, need, 9, "worker")
    held = {device for _, other in books.held for device in other.devices}
    assert not held & set(placement.devices)
    more = replace(books, held=(*books.held, (need, placement)))
    assert not need.gpus or more.gpus_unheld() >= books.seen.others.gpus


@given(STEPS, NEEDS, st.integers(0, 5))
def test_the_node_is_the_same_in_whatever_order_its_pods_came_and_went(steps: list[Any], need: Need, out: int) -> None:
    books = Books(seen({}))
    for step in steps:
        books = after(books, step)
    node = books.node
    if fits(need, node) is None:
        placement = placed_on(node, need, 9, "worker")
        assert node.taking(need, placement, 1).taking(need, placement, -1) == node
    if out < len(books.held):
        gone_last = node.taking(*books.held[out], -1)
        assert gone_last == after(books, out).node


@given(STEPS)
def test_gpus_are_held_by_ours_or_theirs_or_free_and_counted_once(steps: list[Any]) -> None:
    books = Books(seen({}))
    for step in steps:
        books = after(books, step)
        node = books.node
        ours = {device for _, placement in books.held for device in placement.devices}
        free = {device for device, left in enumerate(node.gpu_free) if left == WHOLE_GPU}
        theirs = set(node.gpu_others)
        assert ours | free | theirs == set(range(4))
        assert len(ours) + len(free) + len(theirs) == 4
        assert len(theirs) == min(node.others.gpus, 4 - len(ours))
        assert node.is_held is bool(books.held)
