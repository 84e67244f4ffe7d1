"""Queues' books when the configuration changes under what runs: queues renamed and removed, flavors put in."""

from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.folding.books import put_in_force
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.engine.preemption.rules import may_evict
from tessera.projection.views import QUEUES, Views
from tessera.scheduler import decide
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor, Queue, Quota
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code
from tessera_schemas.views import QueueView
from tests.builders import SHARD, config_proposed, node_seen, run_absent
from tests.ledgers import Committed
from tests.rounds import Rounds, share

ALL = Queue(name="all")
TWO = {"node-a": 8, "node-b": 8}
FAST, SLOW = Flavor(name="fast", gpu_models=("h100",)), Flavor(name="slow", gpu_models=("a100",))


def tree(*leaves: Queue, **more: Any) -> Rounds:
    """Queues below `all` and two nodes of 8 GPUs."""
    return Rounds(ALL, *leaves, nodes=TWO, **more)


def put(rounds: Rounds, *queues: Queue, **more: Any) -> None:
    """Other queues in force, whatever they strand."""
    body = rounds.state.config.body.model_copy(update={"queues": queues, **more})
    rounds.commit(config_proposed(body, rounds.state.config.version, abandon=True))


def used(state: State, name: str) -> int:
    """GPUs that the books count for the queue, or for the queue on a flavor."""
    return state.held_by_queue(name).gpu_milli // 1000


def is_sound(ledger: Committed, recomputed: bool = True) -> None:
    """Replay decides the same, the rules hold, and a snapshot goes on like the state that it was made of."""
    assert verify(ledger.stored).ok or not recomputed
    report = Report()
    check_rules(report, ledger.stored)
    assert [(v.invariant, v.text) for v in report.violations] == []
    again = load(iter(list(dump(ledger.state))))
    assert StateHash().of(again) == ledger.shard.hasher.of(ledger.state)
    assert again.tree == ledger.state.tree


def loan(*, then: tuple[Queue, ...], **more: Any) -> Rounds:
    """`a` holds all 16 GPUs, of which 8 are lent by `b`; then other queues are put in force."""
    rounds = tree(share("a", 8), share("b", 8), **more)
    for n in range(2):
        rounds.submit(f"long-{n}", gpus=8, queue="a")
    rounds.settle()
    put(rounds, *then)
    return rounds


# -- queues that are renamed or removed --------------------------------------------------------------------------------


def test_a_removed_queue_stays_in_the_books_and_what_it_holds_is_borrowed() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    book = rounds.state.quota_book()
    assert used(rounds.state, "a") == 16
    assert book.used("all", ("", "gpu_milli")) == 16000
    assert rounds.state.tree.path("a") == ("a", "all")
    assert rounds.state.tree.pool("a") is None  # it takes no jobs
    is_sound(rounds)


@pytest.mark.parametrize(("above", "evicted"), [(8, 1), (0, 2)])
def test_an_owner_takes_back_what_a_removed_queue_holds_and_no_more(above: int, evicted: int) -> None:
    """Where the removed queue's quota went with it, all that it holds is beyond what is left."""
    rounds = loan(then=(share("all", above, parent=None), share("b", 8)))
    rounds.submit("owner", gpus=8, queue="b")
    rounds.settle()
    assert rounds.running("owner")
    assert [len(names) for names in rounds.evicted()] == [evicted]
    rounds.submit("borrower", gpus=8, queue="b")
    rounds.settle()
    assert not rounds.running("borrower")
    assert len(rounds.evicted()) == 1
    is_sound(rounds)


def test_a_removed_queue_leaves_the_books_with_its_last_run() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    rounds.finish("long-0")
    assert rounds.state.tree.removed == {"a"}
    rounds.finish("long-1")
    assert rounds.state.tree.removed == frozenset()
    assert "a" not in rounds.state.tree.queues
    assert len(rounds.state.removed_queues) == 0
    is_sound(rounds)


@pytest.mark.parametrize("was", ["a", None])
def test_a_renamed_queue_holds_what_runs_of_it_by_its_new_name_or_as_removed(was: str | None) -> None:
    rounds = loan(then=(ALL, share("c", 8, was=was), share("b", 8)))
    assert (used(rounds.state, "a"), used(rounds.state, "c")) == ((0, 16) if was else (16, 0))
    rounds.submit("owner", gpus=8, queue="b")
    rounds.settle()
    assert rounds.running("owner")
    is_sound(rounds)


def test_a_run_that_has_ended_counts_by_its_former_queue_until_its_release() -> None:
    rounds = tree(share("a", 8), share("b", 8))
    rounds.submit("long", gpus=8, queue="a")
    rounds.settle()
    run = rounds.run("long").run_id
    rounds.commit(RunEnded(kind="run_ended", run_id=run))
    put(rounds, ALL, share("c", 8, was="a"), share("b", 8))
    assert (used(rounds.state, "a"), rounds.state.quota_book().used("all", ("", "gpu_milli"))) == (8, 8000)
    rounds.commit(run_absent(run))
    assert rounds.state.quota_book().used("all", ("", "gpu_milli")) == 0
    is_sound(rounds)


def test_a_queue_that_is_back_has_its_place_and_its_runs_back() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    put(rounds, ALL, share("a", 8), share("b", 8))
    assert used(rounds.state, "a") == 16
    assert rounds.state.tree.removed == frozenset()
    assert len(rounds.state.removed_queues) == 0
    is_sound(rounds)


def test_its_place_is_below_the_nearest_that_it_was_below_and_that_is_still_an_inner_queue() -> None:
    rounds = tree(share("team", 0), share("a", 8, parent="team"), share("x", 0, parent="team"), share("b", 8))
    rounds.submit("long", gpus=8, queue="a")
    rounds.settle()
    put(rounds, ALL, share("team", 8), share("x", 0, parent="team"), share("b", 8))
    assert rounds.state.tree.path("a") == ("a", "team", "all")
    put(rounds, ALL, share("team", 8), share("b", 8))  # a leaf now, which takes jobs
    assert rounds.state.tree.path("a") == ("a", "all")
    assert rounds.state.tree.pool("team") == "default"
    put(rounds, share("all", 16, parent=None))
    assert rounds.state.tree.path("a") == ("a",)
    assert rounds.state.tree.loose == ("a",)
    assert rounds.state.tree.pool("all") == "default"
    is_sound(rounds)


def test_what_runs_of_a_queue_that_got_queues_below_it_goes_back_to_these() -> None:
    rounds = tree(share("a", 16))
    for n in range(2):
        rounds.submit(f"long-{n}", gpus=8, queue="a")
    rounds.settle()
    put(rounds, ALL, share("a", 0), share("low", 16, parent="a"))
    rounds.submit("owner", gpus=8, queue="low")
    rounds.settle()
    assert rounds.running("owner")
    assert len(rounds.evicted()) == 1
    is_sound(rounds)


@pytest.mark.parametrize("wanted", [16, 17])
def test_a_queue_in_the_place_of_the_only_one_gets_its_nodes_back(wanted: int) -> None:
    """One queue with the pool's GPUs, as `config init` writes it, under another name."""
    rounds = Rounds(share("research", 16, parent=None), nodes=TWO)
    rounds.submit("long", gpus=8, pods=2)
    rounds.settle()
    put(rounds, share("science", 16, parent=None))
    for n in range(wanted):
        rounds.submit(f"owner-{n}", queue="science")
    rounds.settle()
    assert sum(rounds.running(f"owner-{n}") for n in range(wanted)) == 16
    assert rounds.evicted() == [["long"]]
    is_sound(rounds)


def test_nobody_who_would_borrow_takes_from_one_that_stands_in_no_tree_nor_does_another_pool() -> None:
    other = node_seen("node-b", 8, pool="other")
    queues = share("research", 8, parent=None), Queue(name="spare", pool="other")
    rounds = Rounds(*queues, nodes=[node_seen("node-a", 8), other])
    rounds.submit("long", gpus=8)
    rounds.submit("else", gpus=8, queue="spare")
    rounds.settle()
    put(rounds, share("science", 4, parent=None), Queue(name="spare", pool="other"))
    rounds.submit("too-large", gpus=8, queue="science")
    rounds.submit("not-there", gpus=8, queue="spare")
    rounds.settle()
    assert rounds.running("long", "else")
    assert rounds.evicted() == []
    is_sound(rounds)


def test_nobody_evicts_what_is_about_to_follow_its_queues_new_name() -> None:
    rounds = tree(share("a", 8), share("b", 8))
    rounds.submit("long", gpus=8, queue="a")
    rounds.submit("other", gpus=8, queue="a")
    rounds.settle()
    rounds.submit("owner", gpus=8, queue="b")
    top = rounds.state.overlay()
    body = top.config.body.model_copy(update={"queues": (ALL, share("c", 8, was="a"), share("b", 8))})
    put_in_force(top, top.config.model_copy(update={"version": 9, "body": body}))
    against = may_evict(top, rounds.job("owner"), rounds.run("long"), "reclaim", top.quota_book())
    assert against is not None
    assert against.code is Code.NO_SUCH_QUEUE


def test_a_run_that_may_not_be_evicted_stays_and_is_told_of() -> None:
    rounds = tree(share("a", 8), share("b", 8))
    rounds.submit("firm", gpus=8, queue="a", preemptible=False)
    rounds.settle()
    put(rounds, ALL, share("b", 16))
    rounds.submit("owner", gpus=8, pods=2, queue="b")
    rounds.settle()
    assert rounds.running("firm")
    found = explain(rounds.state, job_id(SHARD, "lab", "owner"), rounds.ts)
    assert found is not None
    assert any("queue a, which was removed" in sentence for sentence in found.sentences)
    is_sound(rounds)


def test_a_removed_queue_is_named_as_such_to_who_looks() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    shown = QueueView.from_bytes(Views(rounds.state).value((QUEUES, "a")) or b"")
    assert (shown.removed, shown.parent, shown.used_gpu_milli, shown.live) == (True, "all", 16000, 2)
    kept = QueueView.from_bytes(Views(rounds.state).value((QUEUES, "b")) or b"")
    assert not kept.removed
    found = explain(rounds.state, job_id(SHARD, "lab", "long-0"), rounds.ts)
    assert found is not None
    assert any("Queue a was removed" in sentence for sentence in found.sentences)


def test_runs_of_a_removed_queue_count_among_their_pool_when_nodes_are_lost() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    assert decide.losses.pool_weight(rounds.state, "default") == 16000


def test_an_overlay_learns_of_it_and_its_base_does_not() -> None:
    rounds = tree(share("a", 8), share("b", 8))
    rounds.submit("long", gpus=8, queue="a")
    rounds.settle()
    top = rounds.state.overlay()
    body = top.config.body.model_copy(update={"queues": (ALL, share("b", 8))})
    put_in_force(top, top.config.model_copy(update={"version": 9, "body": body}))
    assert top.tree.removed == {"a"}
    assert rounds.state.tree.removed == frozenset()
    assert len(rounds.state.removed_queues) == 0
    assert used(rounds.state, "a") == 8


# -- flavors -----------------------------------------------------------------------------------------------------------


def flavored(gpus: int, flavor: str = "fast") -> Queue:
    any_, few = (Quota(resource="gpu_milli", nominal=n * 1000, flavor=on) for n, on in ((64, ""), (gpus, flavor)))
    return Queue(name="research", quotas=(any_, few))


def models() -> Rounds:
    """Two nodes of H100 and one of A100; 8 H100 are in use, no quota tells flavors apart."""
    nodes = [node_seen("f1", gpu_model="h100"), node_seen("f2", gpu_model="h100"), node_seen("s", gpu_model="a100")]
    rounds = Rounds(Queue(name="research"), nodes=nodes)
    rounds.submit("first", gpus=8, gpu_models=("h100",))
    rounds.settle()
    return rounds


@pytest.mark.parametrize("nominal", [8, 16])
def test_a_flavors_quota_sees_what_ran_on_the_flavor_before(nominal: int) -> None:
    rounds = models()
    put(rounds, flavored(nominal), flavors=(FAST,))
    assert used(rounds.state, "research/fast") == 8
    rounds.submit("second", gpus=8, gpu_models=("h100",))
    rounds.settle()
    assert rounds.running("second") is (nominal == 16)
    rounds.finish("first")
    rounds.settle()
    assert rounds.running("second")
    assert used(rounds.state, "research/fast") == 8
    is_sound(rounds)


def test_a_renamed_flavor_has_what_runs_on_its_nodes() -> None:
    rounds = models()
    put(rounds, flavored(8), flavors=(FAST,))
    put(rounds, flavored(8, "swift"), flavors=(Flavor(name="swift", gpu_models=("h100",)),))
    assert (used(rounds.state, "research/fast"), used(rounds.state, "research/swift")) == (0, 8)
    assert rounds.run("first").flavor == "swift"
    rounds.submit("second", gpus=8, gpu_models=("h100",))
    rounds.settle()
    assert not rounds.running("second")
    is_sound(rounds)


def test_a_run_on_nodes_of_several_flavors_counts_where_most_of_its_gpus_are() -> None:
    nodes = [node_seen("f", gpu_model="h100"), node_seen("s1", gpu_model="a100"), node_seen("s2", gpu_model="a100")]
    rounds = Rounds(Queue(name="research"), nodes=nodes)
    rounds.submit("wide", gpus=8, pods=3, mixed_models=True)
    rounds.settle()
    both = Queue(
        name="research",
        quotas=tuple(Quota(resource="gpu_milli", nominal=24000, flavor=name) for name in ("fast", "slow")),
    )
    put(rounds, both, flavors=(FAST, SLOW))
    assert (used(rounds.state, "research/fast"), used(rounds.state, "research/slow")) == (0, 24)
    rounds.finish("wide")
    assert (used(rounds.state, "research/slow"), used(rounds.state, "research")) == (0, 0)
    is_sound(rounds)


def test_what_runs_on_no_choice_of_the_queue_counts_for_all_nodes_alone() -> None:
    rounds = models()
    only = Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=8000, flavor="slow"),))
    put(rounds, only, flavors=(SLOW,))
    assert (used(rounds.state, "research"), used(rounds.state, "research/slow"), rounds.run("first").flavor) == (
        8,
        0,
        "",
    )
    is_sound(rounds)


def test_a_run_that_follows_its_queue_counts_by_the_flavors_of_its_new_tree() -> None:
    rounds = models()
    moved = flavored(8).model_copy(update={"name": "science", "was": "research"})
    put(rounds, moved, flavors=(FAST,))
    assert used(rounds.state, "science/fast") == 8
    assert rounds.run("first").flavor == "fast"
    is_sound(rounds)


def test_a_removed_queue_stays_until_its_runs_of_all_flavors_are_gone() -> None:
    nodes = [node_seen("f", gpu_model="h100"), node_seen("s", gpu_model="a100")]
    rounds = Rounds(ALL, Queue(name="a", parent="all"), Queue(name="b", parent="all"), nodes=nodes)
    for model in ("h100", "a100"):
        rounds.submit(model, gpus=8, queue="a", gpu_models=(model,))
    rounds.settle()
    both = tuple(Quota(resource="gpu_milli", nominal=8000, flavor=name) for name in ("fast", "slow"))
    put(rounds, Queue(name="all", quotas=both), Queue(name="b", parent="all"), flavors=(FAST, SLOW))
    assert (used(rounds.state, "a/fast"), used(rounds.state, "a/slow")) == (8, 8)
    rounds.finish("h100")
    assert rounds.state.tree.removed == {"a"}
    rounds.finish("a100")
    assert rounds.state.tree.removed == frozenset()
    is_sound(rounds)


# -- older ledgers -----------------------------------------------------------------------------------------------------


def test_a_ledger_of_an_earlier_format_folds_as_before_and_its_books_are_made_anew_when_it_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(decide, "FORMAT", 5)
        rounds = loan(then=(ALL, share("b", 8)))
        assert rounds.state.format == 5
        assert "a" not in rounds.state.tree.queues
        rounds.submit("owner", gpus=8, queue="b")
        rounds.settle()
        assert not rounds.running("owner")
        is_sound(rounds)
    rounds.commit(holder="scheduler-2")
    assert rounds.state.format == 6
    assert rounds.state.tree.removed == {"a"}
    rounds.settle()
    assert rounds.running("owner")
    is_sound(rounds, recomputed=False)  # this build would have begun with its own format


def test_what_is_submitted_to_a_removed_queue_waits() -> None:
    rounds = loan(then=(ALL, share("b", 8)))
    rounds.submit("late", queue="a")
    rounds.settle()
    assert rounds.job("late").reason.code is Code.NO_SUCH_QUEUE
