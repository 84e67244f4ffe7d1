"""What is offered as a way to start now does start the job, and what would not is not offered."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.engine.explain.explanation import Explanation, explain
from tessera.engine.explain.suggestions import TRIES_MAX, TriedChange
from tessera_schemas.config import PriorityClass, Queue, Tenant
from tessera_schemas.facts import DrainRequested, HoldRequested, Others, PodsMade, RunStarted
from tessera_schemas.job import AffinityTerm, Operator, Topology
from tessera_schemas.reasons import Code
from tests.builders import GIB, admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.rounds import Rounds, share

RACK = "rack"


def explained(rounds: Rounds, key: str, viewer: str | None = None) -> Explanation:
    found = explain(rounds.state, rounds.job(key).job_id, rounds.ts, viewer)
    assert found is not None
    return found


def offered(rounds: Rounds, key: str = "it") -> dict[str, TriedChange]:
    return {change.kind: change for change in explained(rounds, key).changes}


def busy(*nodes: Any, taken: int = 6, **more: Any) -> Rounds:
    """Two nodes of eight GPUs, `taken` of each held by one job; preset off."""
    rounds = Rounds(nodes=list(nodes) or {"node-a": 8, "node-b": 8}, **{"preset": "off"} | more)
    for name in ("x", "y"):
        rounds.submit(name, gpus=taken)
        rounds.settle()
    return rounds


ROOM: list[tuple[str, Callable[[], Rounds], dict[str, Any], str, dict[str, Any], str]] = [
    ("fewer GPUs", busy, {"gpus": 5}, "gpus", {"gpus": 2}, "2 instead of 5 GPUs per pod"),
    ("fewer pods", busy, {"gpus": 2, "pods": 5}, "pods", {"gpus": 2, "pods": 2}, "2 instead of 5 pods"),
    (
        "any model",
        lambda: busy(node_seen("node-a", 8), node_seen("node-b", 8), node_seen("node-c", 8, gpu_model="a100")),
        {"gpus": 8, "gpu_models": ("h100",)},
        "model",
        {"gpus": 8},
        "any GPU model (it would get a100)",
    ),
    (
        "less CPU",
        busy,
        {"gpus": 1, "cpu_milli": 64_000},
        "cpu",
        {"gpus": 1, "cpu_milli": 63_000},
        "63 instead of 64 CPUs per pod",
    ),
    (
        "less memory",
        busy,
        {"gpus": 1, "memory_bytes": 512 * GIB},
        "memory",
        {"gpus": 1, "memory_bytes": 511 * GIB},
        "511Gi instead of 512Gi per pod",
    ),
    (
        "no topology",
        lambda: busy(node_seen("node-a", 8, labels={RACK: "1"}), node_seen("node-b", 8, labels={RACK: "2"})),
        {"gpus": 2, "pods": 2, "topology": Topology(level=RACK)},
        "topology",
        {"gpus": 2, "pods": 2},
        "no topology rule",
    ),
]


@pytest.mark.parametrize(
    ("made", "asked", "kind", "instead", "text"), [case[1:] for case in ROOM], ids=[case[0] for case in ROOM]
)
def test_the_change_that_is_offered_is_the_largest_that_starts_the_job(
    made: Callable[[], Rounds], asked: dict[str, Any], kind: str, instead: dict[str, Any], text: str
) -> None:
    rounds = made()
    rounds.submit("it", **asked)
    rounds.settle()
    assert not rounds.running("it")
    change = offered(rounds)[kind]
    assert change.text == text
    rounds.submit("changed", **instead)
    rounds.settle()
    assert rounds.running("changed")
    assert tuple(sorted({place.node for place in rounds.run("changed").placements})) == change.nodes


def test_a_node_selector_and_an_affinity_are_each_tried_alone() -> None:
    rounds = busy()
    apart = AffinityTerm(key="zone", operator=Operator.IN, values=("z",))
    for key, rule in (("selector", {"node_selector": {"zone": "z"}}), ("affinity", {"affinity": (apart,)})):
        rounds.commit(admitted(key, job_spec(role(gpus=2, **rule), name=key)))
        rounds.settle()
        assert offered(rounds, key)[key].text in ("no node selector", "no node affinity")
    both = role(gpus=2, node_selector={"zone": "z"}, affinity=(apart,))
    rounds.commit(admitted("both", job_spec(both, name="both")))
    rounds.settle()
    assert not {"selector", "affinity"} & set(offered(rounds, "both"))


def test_a_job_that_keeps_apart_is_offered_a_place_beside_its_group() -> None:
    rounds = Rounds(share("research", 8, None), nodes={"node-a": 8}, preset="off")
    for key in ("one", "it"):
        rounds.submit(key, anti_affinity=({"group": "web"},))
    rounds.settle()
    assert offered(rounds)["apart"].text == "no anti-affinity"


def test_another_queue_is_offered_only_if_its_tenant_may_use_it() -> None:
    queues = (share("mine", 4, None), share("theirs", 8, None, tenants=("other",)), share("open", 8, None))
    rounds = Rounds(*queues, nodes={"node-a": 8}, preset="off")
    rounds.submit("first", gpus=4, queue="mine")
    rounds.settle()
    rounds.submit("it", gpus=2, queue="mine")
    rounds.settle()
    assert offered(rounds)["queue"].text == "queue open instead of mine"
    rounds.submit("changed", gpus=2, queue="open")
    rounds.settle()
    assert rounds.running("changed")


def test_a_higher_class_is_offered_where_a_strict_queue_lets_nobody_pass() -> None:
    rounds = Rounds(Queue(name="research", queueing_strategy="strict_fifo"), nodes={"node-a": 8}, preset="off")
    rounds.submit("first", gpus=4)
    rounds.settle()
    rounds.submit("head", gpus=8)
    rounds.settle()
    rounds.submit("it", gpus=2)
    rounds.settle()
    answer = explained(rounds, "it")
    assert answer.reason is not None
    assert answer.reason.code is Code.BEHIND_QUEUE_HEAD
    assert any(rounds.job("head").job_id in text for text in answer.sentences)
    assert [change.text for change in answer.changes] == ["priority class high"]
    rounds.submit("changed", gpus=2, priority="high")
    rounds.settle()
    assert rounds.running("changed")


def test_a_class_that_is_not_granted_is_not_offered() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    tenants = (Tenant(name="lab", priority_classes=("low", "normal")), Tenant(name="other"))
    body = config_body().model_copy(update={"tenants": tenants, "policy": rounds.state.tree.policy})
    rounds.commit(config_proposed(body, expected_version=1))
    rounds.submit("first", gpus=8)
    rounds.settle()
    rounds.submit("it", gpus=8)
    rounds.settle()
    assert "class" not in offered(rounds)


def test_victims_are_named_only_if_the_preset_would_evict_them() -> None:
    for preset, kind in (("priority", "evict"), ("off", "end")):
        rounds = Rounds(nodes={"node-a": 8}, preset=preset)
        rounds.submit("first", gpus=8, priority="low")
        rounds.settle()
        rounds.submit("it", gpus=8)
        rounds.commit(orders=(rounds.line(),))
        change = offered(rounds)[kind]
        assert change.after == (rounds.run("first").run_id,)
        rounds.settle()
        assert rounds.running("it") is (preset == "priority")
        if preset == "off":
            rounds.finish("first")
            rounds.settle()
            assert rounds.running("it")


def test_a_higher_class_that_evicts_says_whom() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("first", gpus=8)
    rounds.settle()
    rounds.submit("it", gpus=8)
    rounds.settle()
    run = rounds.run("first").run_id
    assert offered(rounds)["class"].text == f"priority class high, which evicts run {run}"
    rounds.submit("changed", gpus=8, priority="high")
    rounds.settle()
    assert rounds.running("changed")


def test_a_held_job_that_would_fit_only_has_to_be_let_go() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off")
    rounds.submit("it", gpus=2)
    rounds.commit(HoldRequested(kind="hold_requested", job_id=rounds.job("it").job_id))
    assert list(offered(rounds)) == ["release"]
    rounds.commit(HoldRequested(kind="hold_requested", job_id=rounds.job("it").job_id, undo=True))
    rounds.settle()
    assert rounds.running("it")


def test_a_held_job_that_would_not_fit_hears_both_and_is_offered_nothing() -> None:
    rounds = busy(taken=8)
    rounds.submit("it", gpus=2)
    rounds.commit(HoldRequested(kind="hold_requested", job_id=rounds.job("it").job_id))
    answer = explained(rounds, "it")
    assert answer.reason is not None
    assert [answer.reason.code, *(reason.code for reason in answer.others)] == [Code.HELD_BY_OPERATOR, Code.NO_FIT]
    assert answer.changes == ()


def test_a_drained_node_is_named_with_its_reason_and_making_it_common_again_is_tried() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 4}, preset="off")
    rounds.commit(DrainRequested(kind="drain_requested", node="node-a", why="new disks"))
    rounds.submit("it", gpus=8)
    rounds.settle()
    answer = explained(rounds, "it")
    assert "Node node-a is drained by an operator: new disks" in answer.sentences
    assert offered(rounds)["undrain"].nodes == ("node-a",)
    rounds.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))
    rounds.settle()
    assert rounds.running("it")


def test_a_job_for_which_room_is_made_hears_until_when_and_nothing_is_tried() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("first", gpus=8, priority="low")
    rounds.settle()
    rounds.held_back.add(rounds.run("first").run_id)
    rounds.submit("it", gpus=8)
    rounds.settle()
    answer = explained(rounds, "it")
    assert answer.reason is not None
    assert (answer.reason.code, answer.reason.numbers) == (Code.WAITING_FOR_PREEMPTED, {"runs_stopping": 1})
    assert answer.sentences[0].startswith("Room on node-a is kept for it (preemption) for ")
    assert answer.changes == ()


def test_room_that_is_kept_for_another_job_is_said_to_be() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("first", gpus=8, priority="low")
    rounds.settle()
    rounds.held_back.add(rounds.run("first").run_id)
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    rounds.submit("it", gpus=2, priority="low")
    rounds.settle()
    kept = explained(rounds, "it").holders.named[0]
    assert (kept.kept, kept.name, kept.until_ts > rounds.ts) == (True, "urgent", True)


def test_a_tenant_hears_of_others_by_queue_and_number_alone() -> None:
    queues = (Queue(name="open"), Queue(name="closed", tenants=("other",)))
    rounds = Rounds(*queues, nodes={"node-a": 8}, preset="fair")
    theirs = []
    for key, queue in (("their-one", "open"), ("their-two", "closed")):
        fact = admitted(key, job_spec(role(gpus=4), name=key, queue=queue), tenant="other")
        theirs.append(fact.job_id)
        rounds.commit(fact)
    rounds.settle()
    rounds.submit("it", gpus=4, queue="open")
    rounds.settle()
    answer = explained(rounds, "it", viewer="lab")
    told = " ".join([answer.sentence(), *answer.notes])
    assert answer.holders.named == ()
    assert "4 GPUs held by 1 other run of other queues" in answer.notes
    assert "4 GPUs held by 1 other run of queue open" in answer.notes
    for name in (*theirs, "their-one", "their-two", "closed"):
        assert name not in told
    assert theirs[0] in " ".join(explained(rounds, "it").notes)
    assert offered(rounds)["end"].after
    (end,) = (change for change in answer.changes if change.kind == "end")
    assert (end.text, end.after) == ("the end of a run of other queues, which holds 4 GPUs", ())


def test_an_elastic_job_says_from_what_to_what_it_grows() -> None:
    rounds = busy(taken=8)
    rounds.submit("it", gpus=1, pods=2, max_replicas=5)
    rounds.settle()
    assert any("starts with 2 pods and grows to 5" in text for text in explained(rounds, "it").sentences)


def test_jobs_that_came_before_and_that_nobody_has_judged_take_their_room_first() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off")
    rounds.submit("before", gpus=8)
    rounds.submit("it", gpus=2)
    answer = explained(rounds, "it")
    assert answer.reason is not None
    assert answer.reason.code is Code.NO_FIT
    rounds.settle()
    assert not rounds.running("it")


def test_explaining_changes_nothing_and_tries_a_bounded_number_of_times() -> None:
    classes = [PriorityClass(name=f"c-{value}", value=value) for value in range(40)]
    queues = [Queue(name="research"), *(share(f"q-{number}", 0, None) for number in range(40))]
    rounds = Rounds(*queues, nodes={"node-a": 8}, classes=[*classes, PriorityClass(name="normal", value=0)])
    rounds.submit("first", gpus=8)
    rounds.settle()
    rounds.submit("it", gpus=8, pods=64)
    rounds.settle()
    before = rounds.shard.hasher.of(rounds.state)
    answer = explained(rounds, "it")
    assert answer.tried <= TRIES_MAX
    assert rounds.shard.hasher.of(rounds.state) == before
    assert explained(rounds, "it") == answer


def test_a_run_on_its_way_says_by_when_it_has_to_start() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    rounds.submit("it", gpus=2)
    rounds.commit(orders=(rounds.line(),))
    assert "within 10m" in explained(rounds, "it").sentences[1]
    run = rounds.run("it").run_id
    rounds.commit(PodsMade(kind="pods_made", run_id=run, uids=("u",)))
    rounds.commit(RunStarted(kind="run_started", run_id=run))
    held = "Pod 0 has on node-a: GPUs 0, 1 (isolation: hardware)."
    assert explained(rounds, "it").sentences == ("Attempt 1 holds 1 place on node-a.", held)


def test_a_job_behind_the_head_of_its_queue_is_told_what_the_head_waits_for() -> None:
    rounds = Rounds(Queue(name="research", queueing_strategy="strict_fifo"), nodes={"node-a": 8}, preset="off")
    rounds.submit("x", gpus=8)
    rounds.settle()
    rounds.submit("head", gpus=4)
    rounds.submit("it", gpus=1)
    rounds.settle()
    said = explained(rounds, "it").notes
    assert any("The first job of queue research is" in note for note in said)
    assert any(note.startswith("That job waits: NoFit: ") for note in said), said


def test_a_job_that_is_short_of_cpu_hears_who_holds_it_and_what_pods_of_others_hold() -> None:
    """A job without GPUs holds the CPU beside all GPUs, which are free."""
    rounds = Rounds(nodes=[node_seen("node-a", 8, others=Others(pods=1, cpu_milli=1000))], preset="off")
    rounds.submit("reads", gpus=0, cpu_milli=60_000)
    rounds.settle()
    rounds.submit("it", gpus=8, cpu_milli=8000)
    rounds.settle()
    answer = explained(rounds, "it")
    assert [holder.name for holder in answer.holders.named] == ["reads"]
    assert "60 CPUs held by reads" in next(answer.holders.describe())
    assert "Pods that Tessera does not manage hold up to 1 CPU on 1 node." in answer.sentences
    assert answer.changes[0].text == "3 instead of 8 CPUs per pod"
    assert answer.changes[-1].text.endswith("which holds 60 CPUs")


def test_the_run_whose_end_would_help_is_told_in_the_resource_that_is_short() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off")
    rounds.submit("reads", gpus=1, cpu_milli=60_000)
    rounds.settle()
    rounds.submit("it", gpus=4, cpu_milli=8000)
    rounds.settle()
    assert explained(rounds, "it").changes[-1].text.endswith("which holds 60 CPUs")
