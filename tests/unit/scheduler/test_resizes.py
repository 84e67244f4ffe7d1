"""Pods of a run that are resized in place, by the real committer, and judged."""

from typing import Any

import pytest

from tessera.client.ledger.validity import violations
from tessera.client.views.story import story
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine import ENGINE_ID
from tessera.engine.explain.explanation import explain
from tessera.testkit.account_checker import AccountBook
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import PodsMade, RequeueRequested
from tessera_schemas.ledger import LEDGER_MESSAGE, JobTurnedAway
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import PodsResized, ResizeBegun, ResizeEnded, ResizeRequested
from tessera_schemas.work.spec_changes import PodSize
from tests.builders import SHARD, admitted, job_spec, node_seen, role
from tests.rounds import Rounds, share

GIB = 2**30
JOB = job_id(SHARD, "lab", "grows")
INFEASIBLE = Reason(code=Code.RESIZE_REFUSED, field="pods.grows-1-0", detail="Node didn't have enough capacity")


@pytest.fixture
def judged() -> Any:
    made: list[Rounds] = []
    yield made.append
    for rounds in made:
        report = check(rounds.stored)
        check_rules(report, rounds.stored)
        assert report.violations == []
        book = AccountBook(0)
        for stored in rounds.stored:
            book.take(LEDGER_MESSAGE.validate_json(stored))
        assert StateHash().of(load(dump(rounds.state))) == rounds.shard.hasher.of(rounds.state)


def running(pods: int = 1, gpus: int = 1, queue: Queue | None = None, **more: Any) -> Rounds:
    """A job of pods of 4 CPUs and 8 GiB that runs on one node of 32 CPUs and 64 GiB."""
    nodes = [node_seen("node-a", 8, cpu_milli=32_000, memory_bytes=64 * GIB)]
    rounds = Rounds(queue or share("research", 8, parent=None), nodes=nodes)
    rounds.submit("grows", gpus=gpus, pods=pods, cpu_milli=4000, memory_bytes=8 * GIB, **more)
    start(rounds)
    return rounds


def start(rounds: Rounds) -> None:
    rounds.round(plans=False)
    rounds.round(plans=False)


def ask(rounds: Rounds, key: str = "one", tenant: str = "lab", **size: Any) -> list[Any]:
    said = PodSize.model_validate(size)
    fact = ResizeRequested(kind="resize_requested", job_id=JOB, size=said, key=key, tenant=tenant)
    return list(rounds.commit(fact).records)


def told(rounds: Rounds, key: str = "one", reason: Reason | None = None) -> list[Any]:
    fact = PodsResized(kind="pods_resized", run_id=rounds.run("grows").run_id, key=key, reason=reason)
    return list(rounds.commit(fact).records)


def refusals(records: list[Any]) -> list[tuple[Code, str]]:
    return [(why.code, why.field) for r in records if isinstance(r, JobTurnedAway) for why in r.reasons]


def free(rounds: Rounds) -> tuple[int, int]:
    node = rounds.state.nodes.get("node-a")
    return node.cpu_free // 1000, node.memory_free // GIB


def held(rounds: Rounds) -> tuple[int, int]:
    amount = rounds.state.queue_use.get("research").amount
    return amount.cpu_milli // 1000, amount.memory_bytes // GIB


def test_growth_is_held_from_the_record_on_and_the_old_size_until_the_nodes_have_taken_it(judged: Any) -> None:
    rounds = running(pods=2)
    judged(rounds)
    assert (free(rounds), held(rounds)) == ((24, 48), (8, 16))
    (begun,) = ask(rounds, cpu_milli=8000, memory_bytes=4 * GIB)
    assert isinstance(begun, ResizeBegun)
    assert (begun.role, begun.cpu_milli, begun.memory_bytes, begun.by) == ("worker", 8000, 4 * GIB, "lab")
    # The larger of both sizes, resource by resource: CPU grows at once, and memory is not given to others yet.
    assert (free(rounds), held(rounds)) == ((16, 48), (16, 16))
    assert rounds.job("grows").amount.memory_bytes == 8 * GIB
    assert rounds.state.tenant_use.get("lab").amount.cpu_milli == 16_000
    (ended,) = told(rounds)
    assert (type(ended), ended.reason) == (ResizeEnded, None)
    assert (free(rounds), held(rounds)) == ((16, 56), (16, 8))
    assert rounds.run("grows").resize is None


def test_what_a_shrinking_run_may_still_use_is_given_to_nobody_else(judged: Any) -> None:
    rounds = running(gpus=0, queue=Queue(name="research"))
    judged(rounds)
    ask(rounds, cpu_milli=1000)
    rounds.submit("waits", gpus=0, cpu_milli=30_000, memory_bytes=GIB)
    start(rounds)
    assert rounds.run("waits") is None
    told(rounds)
    start(rounds)
    assert rounds.running("waits")


def test_a_refused_resize_holds_both_sizes_until_the_pods_are_back(judged: Any) -> None:
    rounds = running()
    judged(rounds)
    ask(rounds, cpu_milli=8000, memory_bytes=4 * GIB)
    (ended,) = told(rounds, reason=INFEASIBLE)
    assert (ended.reason, ended.cpu_milli, ended.memory_bytes) == (INFEASIBLE, 4000, 8 * GIB)
    assert free(rounds) == (24, 56)
    job = rounds.job("grows")
    assert (job.resized, job.amount.cpu_milli, job.amount.memory_bytes) == ((), 4000, 8 * GIB)
    assert told(rounds, reason=INFEASIBLE) == []
    (back,) = told(rounds)
    assert (back.reason, back.cpu_milli) == (None, 4000)
    assert free(rounds) == (28, 56)


def test_a_second_request_takes_the_place_of_the_first(judged: Any) -> None:
    rounds = running()
    judged(rounds)
    ask(rounds, cpu_milli=8000)
    ask(rounds, key="two", cpu_milli=2000)
    assert free(rounds)[0] == 24
    assert told(rounds) == []
    told(rounds, key="two", reason=INFEASIBLE)
    told(rounds, key="two")
    assert free(rounds)[0] == 28
    assert rounds.job("grows").amount.cpu_milli == 4000


def test_the_size_that_the_pods_have_is_no_news(judged: Any) -> None:
    rounds = running()
    judged(rounds)
    assert ask(rounds, cpu_milli=4000) == []
    ask(rounds, cpu_milli=8000)
    assert ask(rounds, key="two", cpu_milli=8000) == []


@pytest.mark.parametrize("ended", [True, False], ids=["once it is taken", "while it is under way"])
def test_the_next_run_of_the_job_begins_with_the_new_size(judged: Any, ended: bool) -> None:
    rounds = running()
    judged(rounds)
    ask(rounds, cpu_milli=8000, memory_bytes=4 * GIB)
    if ended:
        told(rounds)
    rounds.commit(RequeueRequested(kind="requeue_requested", job_id=JOB, tenant="lab"))
    rounds.round(plans=False)
    start(rounds)
    assert rounds.run("grows").attempt == 2
    assert (free(rounds), held(rounds)) == ((24, 60), (8, 4))
    assert [(each.cpu_milli, each.memory_bytes) for each in rounds.job("grows").resized] == [(8000, 4 * GIB)]


def test_pods_that_a_run_grew_by_are_resized_too(judged: Any) -> None:
    rounds = Rounds(share("research", 4, parent=None), nodes={"node-a": 8}, grow_after_seconds=0)
    judged(rounds)
    rounds.commit(admitted("grows", job_spec(role(replicas=1, max_replicas=2, gpus=1), name="grows")))
    for _ in range(4):
        rounds.round(plans=False)
    run, before = rounds.run("grows"), rounds.state.nodes.get("node-a").cpu_free
    assert [extra.uid for extra in run.extra] == [""]
    rounds.commit(PodsMade(kind="pods_made", run_id=run.run_id, uids=("more",), ranks=(1,)))
    need = run.roles[0].need.cpu_milli
    ask(rounds, cpu_milli=need + 500)
    assert rounds.state.nodes.get("node-a").cpu_free == before - 1000


def test_what_a_node_a_quota_or_a_limit_does_not_allow_is_refused_with_what_is_missing(judged: Any) -> None:
    quota = (Quota(resource="gpu_milli", nominal=8000), Quota(resource="cpu_milli", nominal=20_000))
    rounds = running(pods=2, queue=Queue(name="research", quotas=quota))
    judged(rounds)
    (refused,) = ask(rounds, memory_bytes=40 * GIB)
    (why,) = refused.reasons
    assert (why.code, why.field) == (Code.RESIZE_DOES_NOT_FIT, "nodes.node-a")
    assert why.numbers == {"more_memory_bytes": 64 * GIB, "free_memory_bytes": 48 * GIB}
    assert refusals(ask(rounds, cpu_milli=11_000)) == [(Code.WAITING_FOR_QUOTA, "queues.research.cpu_milli")]
    assert ask(rounds, key="fits", cpu_milli=10_000)[0].kind == "resize_begun"


def test_what_cannot_be_resized_is_refused_by_name(judged: Any) -> None:
    rounds = Rounds(share("research", 8, parent=None))
    judged(rounds)
    named = [role(gpus=1).model_copy(update={"name": name}) for name in ("leader", "worker")]
    rounds.commit(admitted("grows", job_spec(*named, name="grows")))
    assert refusals(ask(rounds, cpu_milli=8000, role="worker")) == [(Code.NOT_RUNNING, "job_id")]
    start(rounds)
    assert refusals(ask(rounds, cpu_milli=8000)) == [(Code.INVALID_FIELD, "role")]
    assert refusals(ask(rounds, cpu_milli=8000, role="nobody")) == [(Code.INVALID_FIELD, "role")]
    assert refusals(ask(rounds, tenant="other", cpu_milli=8000)) == [(Code.NO_SUCH_JOB, "job_id")]
    now = rounds.run("grows").gang.need_of["worker"].cpu_milli
    assert ask(rounds, cpu_milli=now + 1, role="worker")[0].kind == "resize_begun"
    assert refusals(ask(rounds, key="two", cpu_milli=now + 1, role="leader")) == [(Code.RESIZE_UNDER_WAY, "role")]


def test_a_record_that_takes_more_than_there_is_is_found_on_replay(judged: Any) -> None:
    rounds = running()
    judged(rounds)
    run_id = rounds.run("grows").run_id
    record = ResizeBegun(
        kind="resize_begun", run_id=run_id, role="worker", cpu_milli=33_000, memory_bytes=GIB, request="one"
    )
    (found,) = violations(rounds.state, record, ENGINE_ID)
    assert "ResizeDoesNotFit" in found


def test_a_resize_that_takes_more_than_the_node_has_is_found_by_the_checker() -> None:
    rounds = running()
    ask(rounds, cpu_milli=8000)
    *before, last = rounds.stored
    message = LEDGER_MESSAGE.validate_json(last)
    (begun,) = message.records
    lie = message.model_copy(update={"records": (begun.model_copy(update={"cpu_milli": 40_000}),)})
    report = check([*before, lie.to_bytes()])
    assert any("raises use above capacity" in found.text for found in report.violations)


def test_explain_and_the_story_say_how_far_a_resize_is(judged: Any) -> None:
    rounds = running()
    judged(rounds)
    ask(rounds, cpu_milli=8000, memory_bytes=4 * GIB)
    under_way = explain(rounds.state, JOB, rounds.ts)
    assert under_way is not None
    assert any(
        "in place to 8 CPU and 4Gi each" in line and "each holds 8 CPU and 8Gi" in line for line in under_way.notes
    )
    ask(rounds, key="two", cpu_milli=90_000)
    told(rounds, reason=INFEASIBLE)
    told(rounds)
    messages = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    lines = [
        line.text
        for message in messages
        for line in story(message, JOB)
        if "each" in line.text or "resize" in line.text
    ]
    assert lines[0] == "each pod of worker is to have 8 CPU and 4Gi in place, as lab asked"
    assert "a resize of its pods was refused: ResizeDoesNotFit: nodes.node-a: " in lines[1]
    assert "goes back to 4 CPU and 8Gi: ResizeRefused: pods.grows-1-0: " in lines[2]
    assert lines[3] == "each pod of worker has 4 CPU and 8Gi"
