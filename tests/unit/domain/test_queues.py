"""Quotas of the queue tree: nominal, borrowing and lending limits, flavors; what is stopped and what is drained."""

from itertools import pairwise

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Amount
from tessera.domain.queues import QueueTree, QuotaBook, queue_tree
from tessera_schemas.config import Config, Flavor, Queue, Quota
from tests.builders import config_body, node_seen

GPU = ("", "gpu_milli")
FLAVORS = (
    Flavor(name="fast", gpu_models=("h100",)),
    Flavor(name="spot", node_labels={"spot": "yes"}),
    Flavor(name="slow", gpu_models=("a100",)),
)


def gpus(count: int) -> Amount:
    return Amount(gpu_milli=count * 1000)


def quota(nominal: int, borrow: int | None = None, lend: int | None = None, flavor: str = "") -> Quota:
    limits = {"borrowing_limit": borrow, "lending_limit": lend}
    scaled = {name: None if value is None else value * 1000 for name, value in limits.items()}
    return Quota.model_validate(
        {"resource": "gpu_milli", "nominal": nominal * 1000, "flavor": flavor, **scaled}  # in whole GPUs
    )


def tree(*queues: Queue) -> QueueTree:
    return queue_tree(Config(version=1, body=config_body(*queues, flavors=FLAVORS)))


def leaf(name: str, *quotas: Quota, parent: str | None = "all", **more: object) -> Queue:
    return Queue.model_validate({"name": name, "parent": parent, "quotas": quotas, **more})


ALL = Queue(name="all")
PAIR = tree(ALL, leaf("a", quota(4)), leaf("b", quota(4)))


def available(tree: QueueTree, queue: str, **held: int) -> int:
    book = QuotaBook(tree, {name: gpus(count) for name, count in held.items()})
    return book.available(queue, GPU) // 1000


def test_a_queue_may_use_what_nobody_below_its_parent_uses() -> None:
    assert [available(PAIR, "a", a=0, b=b) for b in (0, 3, 4, 8)] == [8, 5, 4, 0]
    assert available(PAIR, "a", a=8) == 0
    assert available(PAIR, "a", b=9) == -1, "after a quota was lowered"


def test_a_queue_alone_has_its_nominal_quota_and_no_more() -> None:
    alone = tree(leaf("a", quota(4), parent=None))
    assert [available(alone, "a", a=used) for used in (0, 4, 5)] == [4, 0, -1]


def test_a_borrowing_limit_bounds_what_is_taken_above_the_nominal_quota() -> None:
    bounded = tree(ALL, leaf("a", quota(4, borrow=1)), leaf("b", quota(4)))
    assert [available(bounded, "a", a=used) for used in (0, 4, 5)] == [5, 1, 0]


def test_a_lending_limit_keeps_the_rest_for_the_queue_itself() -> None:
    keeping = tree(ALL, leaf("a", quota(4)), leaf("b", quota(4, lend=1)))
    assert available(keeping, "a") == 5
    assert available(keeping, "b", a=5) == 3, "what it kept is there whatever the others use"
    assert available(keeping, "b", a=1) == 7


def test_an_inner_queue_bounds_all_that_is_below_it() -> None:
    nested = tree(ALL, leaf("inner", quota(1, borrow=2)), leaf("a", quota(1), parent="inner"), leaf("b", quota(9)))
    assert available(nested, "a") == 4, "its own 1, 1 of its parent, and 2 that the parent may borrow"
    assert available(nested, "b") == 11


def test_over_names_the_first_quota_that_is_used_up_with_its_numbers() -> None:
    book = QuotaBook(PAIR, {"a": gpus(3), "b": gpus(4)})
    assert book.over("a", "", gpus(1)) is None
    over = book.over("a", "", gpus(2))
    assert over is not None
    assert (over.queue, over.cell, over.wanted, over.available, over.used, over.nominal) == (
        "a", GPU, 2000, 1000, 3000, 4000,
    )  # fmt: skip


def test_what_no_queue_of_the_tree_has_a_quota_for_has_no_limit() -> None:
    book = QuotaBook(PAIR, {})
    assert book.over("a", "", Amount(cpu_milli=10**9, memory_bytes=10**15)) is None
    assert book.over("a", "", Amount(cpu_milli=10**9, gpu_milli=9000)) is not None


def test_a_queue_without_a_quota_may_only_borrow() -> None:
    book = QuotaBook(tree(ALL, leaf("a", quota(4)), leaf("b")), {})
    assert (book.over("b", "", gpus(4)), book.borrows("b", "", gpus(1))) == (None, True)
    assert book.over("b", "", gpus(5)) is not None


def test_borrowing_begins_above_the_nominal_quota() -> None:
    book = QuotaBook(PAIR, {"a": gpus(3)})
    assert (book.borrows("a", "", gpus(1)), book.borrows("a", "", gpus(2))) == (False, True)
    assert not book.holds_lent("a", "", gpus(1))
    book.add("a", "", gpus(2))
    assert book.holds_lent("a", "", gpus(1))
    book.add("a", "", gpus(1), -1)
    assert not book.holds_lent("a", "", gpus(1))


def test_most_is_what_a_queue_could_use_if_nobody_else_did() -> None:
    bounded = tree(ALL, leaf("a", quota(4, borrow=1)), leaf("b", quota(4, lend=3)))
    book = QuotaBook(bounded, {"a": gpus(4), "b": gpus(4)})
    assert (book.most("a", GPU), book.most("b", GPU), book.total("all", GPU)) == (5000, 8000, 7000)


# -- flavors --------------------------------------------------------------------------------------------------------


def test_a_node_is_of_the_first_flavor_that_it_matches() -> None:
    flavors = tree(leaf("a", parent=None))
    nodes = [
        node_seen("n", gpu_model="h100", labels={"spot": "yes"}),
        node_seen("n", gpu_model="a100", labels={"spot": "yes"}),
        node_seen("n", gpu_model="a100"),
        node_seen("n", gpu_model="t4"),
    ]
    assert [flavors.flavor_of(empty_node(node)) for node in nodes] == ["fast", "spot", "slow", ""]


def test_a_job_tries_the_flavors_of_its_queue_first_and_then_those_it_may_only_borrow() -> None:
    both = tree(
        ALL,
        leaf("a", quota(1, flavor="slow"), quota(1, flavor="spot")),
        leaf("b", quota(1, flavor="fast"), quota(1, flavor="slow")),
    )
    assert both.flavors_for("a", gpus(1)) == ("slow", "spot", "fast")
    assert both.flavors_for("b", gpus(1)) == ("fast", "slow", "spot")
    assert both.flavors_for("a", Amount(cpu_milli=1)) == ("",), "quotas of GPUs say nothing about jobs without"
    assert PAIR.flavors_for("a", gpus(1)) == ("",)


def test_each_flavor_is_counted_for_itself_and_all_nodes_together_besides() -> None:
    both = tree(ALL, leaf("a", quota(2, flavor="fast"), quota(2, flavor="slow"), quota(3)))
    book = QuotaBook(both, {})
    book.add("a", "fast", gpus(2))
    assert book.over("a", "fast", gpus(1)) is not None
    assert book.over("a", "slow", gpus(1)) is None
    over = book.over("a", "slow", gpus(2))
    assert over is not None
    assert over.cell == GPU


# -- stopped and drained --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "stopped", "drained"), [("none", None, False), ("hold", "all", False)])
def test_a_queue_is_stopped_with_any_queue_above_it(policy: str, stopped: str | None, drained: bool) -> None:
    nested = tree(Queue.model_validate({"name": "all", "stop_policy": policy}), leaf("a"))
    assert (nested.stopped("a"), "a" in nested.drained) == (stopped, drained)


def test_a_queue_below_a_drained_one_is_drained_even_if_it_is_only_held_itself() -> None:
    top = Queue(name="all", stop_policy="hold_and_drain")
    nested = tree(top, leaf("a", stop_policy="hold"))
    assert (nested.stopped("a"), nested.drained) == ("a", {"a", "all"})


def test_only_leaves_take_jobs() -> None:
    assert (PAIR.pool("all"), PAIR.pool("a"), PAIR.pool("nowhere")) == (None, "default", None)
    assert PAIR.queues_of == {"default": frozenset({"a", "b"})}
    assert [PAIR.path("a"), PAIR.roots["a"]] == [("a", "all"), "all"]


def test_what_is_available_falls_by_what_is_taken_until_a_limit_is_reached() -> None:
    """One GPU at a time: never two less at once, never more again."""
    keeping = tree(ALL, leaf("a", quota(2, borrow=3)), leaf("b", quota(6, lend=2)))
    left = [available(keeping, "a", a=used) for used in range(8)]
    assert left[0] == 4
    assert all(before - after == 1 for before, after in pairwise(left))
