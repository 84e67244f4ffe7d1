"""What the commands of operators print: within 80 columns, with the numbers that the views hold."""

import json
from typing import Any

import pytest
from rich.cells import cell_len

from tessera.client.commands.jobs.preempt import VICTIMS, plan_lines, planned
from tessera.client.commands.nodes.drains import drain_line, on_node
from tessera.client.commands.shard.queues import movable, queue_facts, stopped
from tessera.client.commands.shard.views import NODES as NODE_COLUMNS
from tessera.client.commands.shard.views import job_columns, job_facts
from tessera.client.outcomes import Failure
from tessera.client.views.explain import explanation_lines, story_lines
from tessera.client.views.overview import node_line, overview
from tessera.client.views.queues import QUEUES, QUOTAS, in_tree, queue_rows, quota_rows
from tessera.client.views.rendering import COLUMNS, table
from tessera.client.views.story import StoryLine, story
from tessera.engine.preemption.plans import Plan, Victim
from tessera.gateway.operations.models import WorkGroups
from tessera.gateway.reading.explaining import explained
from tessera.gateway.reading.groups import groups_of, idle_groups
from tessera_schemas.config import Queue
from tessera_schemas.facts import HoldRequested, PriorityRequested
from tessera_schemas.ledger import LEDGER_MESSAGE, LedgerMessage, Requeued
from tessera_schemas.reasons import Code, PublicReason, Reason
from tessera_schemas.views import JobView, NodeView, QueueView, QuotaUse
from tessera_schemas.work.placement import Placement
from tests.builders import admitted, config_body, config_proposed, job_spec, role
from tests.rounds import Rounds

NOW = 1_760_000_000_000
LONG = "宽" * 40


def view(name: str, phase: str = "running", gpus: int = 8, tenant: str = "lab", **more: object) -> JobView:
    base = {"job_id": name.ljust(20, "a"), "key": "k", "queue": "research", "priority": 0, "attempt": 1, "pods": 1}
    return JobView.model_validate(
        {**base, "name": name, "tenant": tenant, "phase": phase, "gpu_milli": gpus * 1000, "submitted_ts": NOW - 60_000}
        | more
    )


def node(name: str, *free: int, ready: bool = True, drained: bool = False) -> NodeView:
    return NodeView(name=name, pool="default", ready=ready, drained=drained, gpus=len(free), gpu_free=free)


def use(used: int, nominal: int = 8, **more: int) -> QuotaUse:
    more = {name: value * 1000 for name, value in more.items()}
    return QuotaUse(resource="gpu_milli", nominal=nominal * 1000, used=used * 1000, **more)


TREE = [
    QueueView(name="vision", pool="default", parent="all", queued=3, live=5, weight=2, quotas=(use(12, borrowed=4),)),
    QueueView(name="all", pool="default", inner=True, quotas=(use(12, nominal=16),)),
    QueueView(name="text", pool="default", parent="all", stop_policy="hold", quotas=(use(0, lent=4),)),
]
NODES = [node("gpu-1", *[0] * 8), node("gpu-2", 1000, 1000, 1000, 1000, 0, 0, 0, 0)]


@pytest.mark.parametrize(("more", "state"), [({}, "ready"), ({"spare": True}, "spare"), ({"drained": True}, "drained")])
def test_the_state_of_a_node_says_that_it_is_a_spare(more: dict[str, bool], state: str) -> None:
    (_, row) = table(NODE_COLUMNS, [node("gpu-1", 1000).model_copy(update=more)])
    assert row.split()[2] == state


# -- queues and quotas


def test_queues_stand_below_their_parents_with_what_they_borrow_and_lend() -> None:
    assert [queue.name for queue in in_tree(TREE)] == ["all", "text", "vision"]
    assert {row.share for row in queue_rows(TREE, ())} == {"-"}, "of a pool without nodes there is no share"
    title, _, text, vision = table(QUEUES, queue_rows(TREE, NODES))
    assert title.split() == [
        "QUEUE",
        "STATE",
        "WEIGHT",
        "SHARE",
        "GPUS",
        "QUOTA",
        "BORROWED",
        "LENT",
        "WAITING",
        "LIVE",
    ]
    assert text.split() == ["text", "held", "1", "0.0%", "0", "8", "0", "4", "0", "0"]
    assert vision.split() == ["vision", "open", "2", "75.0%", "12", "8", "4", "0", "3", "5"]


def test_quotas_are_a_row_for_each_resource_and_flavor() -> None:
    quotas = (use(2), QuotaUse(resource="memory_bytes", flavor="h100", nominal=2**40, used=2**39, available=2**39))
    rows = quota_rows([QueueView(name="research", pool="default", quotas=quotas)])
    assert [line.split() for line in table(QUOTAS, rows)][1:] == [
        ["research", "gpus", "any", "8", "2", "0", "0", "0"],
        ["research", "memory", "h100", "1Ti", "512Gi", "0", "0", "512Gi"],
    ]


def test_a_part_of_the_pool_is_shown_with_how_much_it_is_now() -> None:
    whole = use(2, nominal=32).model_copy(update={"part_percent": 100})
    half = use(0, nominal=7).model_copy(update={"part_percent": 50, "flavor": "h100"})
    queue = QueueView(name="research", pool="default", quotas=(whole, half))
    assert "all (32)" in table(QUEUES, queue_rows([queue], []))[1]
    assert ["all (32)" in line or "50% (7)" in line for line in table(QUOTAS, quota_rows([queue]))] == [
        False,
        True,
        True,
    ]


def test_one_queue_is_told_in_words() -> None:
    (row,) = (row for row in queue_rows(TREE, NODES) if row.queue.name == "vision")
    assert dict(queue_facts(row))["jobs"] == "3 jobs wait, 5 live"
    assert dict(queue_facts(row))["gpus"] == "12, 75.0% of the pool"


def test_stopping_a_queue_changes_nothing_else_of_the_configuration() -> None:
    body = config_body(Queue(name="a"), Queue(name="b"))
    held = stopped(body, "b", "hold")
    assert [queue.stop_policy for queue in held.queues] == ["none", "hold"]
    assert stopped(held, "b", "none") == body
    with pytest.raises(Failure, match="queue c: there is no such queue"):
        stopped(body, "c", "hold")


def test_a_move_names_the_jobs_that_wait_and_an_array_for_its_tasks() -> None:
    waits = {"tenant": "lab", "queue": "a", "phase": "queued"}
    rows = {
        "one": waits,
        "runs": waits | {"phase": "running"},
        "elsewhere": waits | {"queue": "b"},
        "array": waits,
        "task": waits | {"task_of": "array"},
        "orphan": waits | {"task_of": "gone"},
    }
    common = {"name": "train", "key": "k", "attempt": 0, "pods": 1, "gpu_milli": 0, "submitted_ts": 1}
    jobs = [JobView.model_validate({**common, "priority": 0, "job_id": name, **row}) for name, row in rows.items()]
    assert movable(jobs, "a") == ["one", "array", "orphan"]
    assert movable(jobs, "a", {"task", "one"}) == ["one", "task"]


# -- nodes


def test_draining_says_what_becomes_of_the_jobs_there() -> None:
    there = view("train", placements=(Placement(0, "worker", "gpu-1", (0,), 1000),))
    ended = view("old", phase="succeeded", placements=there.placements)
    assert on_node([there, ended, view("elsewhere")], "gpu-1") == [there]
    assert drain_line("gpu-1", [], False) == "node gpu-1 is drained, and empty"
    assert drain_line("gpu-1", [there], False).startswith("node gpu-1 is drained; 1 job there run on to their end")
    assert drain_line("gpu-1", [there], True).endswith("restart elsewhere: train")


# -- top


def grouped(*jobs: JobView) -> WorkGroups:
    """Live jobs as the gateway groups them."""
    tenants, reasons = groups_of(jobs)
    return WorkGroups(as_of=1, tenants=tenants, reasons=reasons, idle=idle_groups(jobs))


def test_the_overview_says_who_uses_the_gpus_and_why_jobs_wait() -> None:
    reason = PublicReason(code="NoFit")
    jobs = [view("a"), view("b", "queued", reason=reason), view("c", "queued", 4, "ops")]
    lines = overview(grouped(*jobs), [*NODES, node("gpu-3", 1000, drained=True)], TREE, NOW)
    told = [" ".join(line.split()) for line in lines]
    assert told[0] == "GPUs 12 of 17 in use, 5 wholly free; nodes 2 ready, 1 drained"
    assert "lab 8 1 1 8" in told
    assert "ops 0 0 1 4" in told
    assert "no node has room for it now 1 8 1m" in told
    assert "not looked at yet 1 4 1m" in told


def test_the_overview_says_who_was_warned_of_holding_gpus_and_using_none() -> None:
    idle = [view("a", idle_ts=5), view("b", idle_ts=5, held_pods=2, held_gpu_milli=16_000), view("c", gpus=4)]
    others = [view("d", gpus=4, tenant="ops", idle_ts=5), view("e", "evicting", idle_ts=5), view("f", "queued")]
    told = [" ".join(line.split()) for line in overview(grouped(*idle, *others), NODES, TREE, NOW)]
    at = told.index("WARNED OF USING NONE QUEUE JOBS GPUS")
    assert told[at + 1 : at + 3] == ["lab research 2 24", "ops research 1 4"]
    assert not any("WARNED" in line for line in overview(grouped(*idle[2:]), NODES, TREE, NOW))


def test_a_job_that_was_warned_of_using_none_of_its_gpus_says_so() -> None:
    assert dict(job_facts(view("a", idle_ts=NOW - 7_200_000), NOW))["uses"] == "none of its GPUs: warned 2h ago"
    assert "uses" not in dict(job_facts(view("a"), NOW))


def test_an_array_counts_by_its_tasks_and_does_not_wait_itself() -> None:
    array = view("a", "queued", gpus=0, reason=PublicReason(code="ArrayTasks"))
    lines = overview(grouped(array, view("a", task_of="a" * 20)), NODES, TREE, NOW)
    told = [" ".join(line.split()) for line in lines]
    assert "lab 8 1 0 0" in told
    assert not any("WAITING BECAUSE" in line for line in told)


def test_elastic_jobs_count_as_what_they_hold_and_waiting_ones_as_their_gang() -> None:
    grown = view("a", gpus=8, pods=2, held_pods=10, held_gpu_milli=40_000)
    ending = view("b", gpus=8, tenant="ops", pods=4, held_pods=1, held_gpu_milli=2000)
    told = [" ".join(line.split()) for line in overview(grouped(grown, ending), NODES, TREE, NOW)]
    assert "lab 40 1 0 0" in told
    assert "ops 2 1 0 0" in told
    assert dict(job_facts(grown, NOW))["gpus"] == "40 now, 8 of its gang"
    assert dict(job_facts(ending, NOW))["pods"] == "1 now, 4 of its gang"
    assert dict(job_facts(view("c", "queued"), NOW))["gpus"] == "8"
    row = [column.value(grown) for column in job_columns(NOW)]
    assert "40" in row


def test_an_empty_shard_is_told_in_a_line() -> None:
    assert node_line([]) == "GPUs 0 of 0 in use, 0 wholly free; nodes 0 ready"
    assert groups_of([]) == ((), ())


# -- plans


def full(preset: str = "priority") -> Rounds:
    rounds = Rounds(nodes={"node-a": 8}, preset=preset)
    rounds.submit("first", gpus=8, priority="low", time_limit_seconds=3700)
    rounds.settle()
    rounds.commit(ms=90_000)
    rounds.submit("it", gpus=8)
    return rounds


def test_a_plan_names_its_victims_and_the_work_that_is_lost() -> None:
    rounds = full()
    found = planned(rounds.state, rounds.job("it"), rounds.ts)
    assert isinstance(found, Plan)
    lines = plan_lines(rounds.state, rounds.job("it"), found)
    assert lines[0] == f"preset priority, preemption: it ({rounds.job('it').job_id})"
    assert lines[1] == "  would start with 1 pod on node-a"
    run = rounds.run("first").run_id
    assert lines[4].split()[:4] == [run, "research", "low", "8"]
    assert max(map(len, lines)) <= COLUMNS


def test_a_held_job_is_told_that_it_is_held_and_not_that_it_does_not_wait() -> None:
    rounds = full()
    job_id = rounds.job("it").job_id
    rounds.commit(HoldRequested(kind="hold_requested", job_id=job_id, tenant="lab"))
    found = planned(rounds.state, rounds.job("it"), rounds.ts)
    assert isinstance(found, Reason)
    assert found.code is Code.ON_HOLD
    assert "`tessera release`" in " ".join(plan_lines(rounds.state, rounds.job("it"), found))


def test_a_job_in_back_off_or_of_a_stopped_queue_is_told_so_by_a_dry_run() -> None:
    rounds = full()
    stopped = config_body(Queue(name="research", stop_policy="hold"), policy={"preset": "priority"})
    rounds.commit(config_proposed(stopped, 1))
    found = planned(rounds.state, rounds.job("it"), rounds.ts)
    assert isinstance(found, Reason)
    assert found.code is Code.QUEUE_STOPPED


def test_without_a_plan_the_reason_is_told() -> None:
    rounds = full("off")
    lines = plan_lines(rounds.state, rounds.job("it"), planned(rounds.state, rounds.job("it"), rounds.ts))
    assert lines[0].startswith("preset off: there is no plan for it")
    assert "NotAllowedByPreset" in lines[1]
    assert max(map(len, lines)) <= COLUMNS


# -- explanations


def told(rounds: Rounds, key: str = "it", viewer: str | None = None) -> list[str]:
    return explanation_lines(answered(rounds, key, viewer), rounds.ts)


SAID = {"id": "1.0", "time": "2026-10-09T06:53:20.000Z", "event": "job.admitted", "why": "queue default, key it"}


def answered(rounds: Rounds, key: str = "it", viewer: str | None = None) -> dict[str, Any]:
    """What `tessera explain -o json` prints."""
    answer = explained(rounds.state, rounds.job(key).job_id, viewer, rounds.ts)
    assert answer is not None
    return answer.model_dump(mode="json") | {"story": [SAID]}


def test_an_explanation_says_why_who_until_when_and_what_would_help_in_80_columns() -> None:
    rounds = full("off")
    rounds.commit(orders=(rounds.line(),))
    lines = told(rounds)
    text = " ".join(" ".join(lines).split())
    assert max(map(cell_len, lines)) <= COLUMNS
    assert "Place 1 of 1 in line for pool default" in text
    assert "8 GPUs held by first" in text
    assert "1h more at most" in text
    assert "Each of these alone would start it now" in text
    assert "the end of first" in text
    assert lines[-2].endswith("job.admitted  queue default, key it")
    assert lines[-1] == f"as of {rounds.state.n}"


def test_an_explanation_for_programs_is_json_with_everything() -> None:
    rounds = full()
    value = json.loads(json.dumps(answered(rounds)))
    assert value["reason"]["code"] == Code.NO_FIT
    assert value["holders"][0]["name"] == "first"
    assert [change["kind"] for change in value["changes"]] == ["evict"]
    assert value["taken_n"] == rounds.job("it").taken_n


def test_nothing_that_helps_is_said_to_be_nothing() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off")
    for key in ("first", "second"):
        rounds.submit(key, gpus=4, priority="urgent")
    rounds.settle()
    rounds.submit("it", gpus=1, pods=1, cpu_milli=64_000, priority="urgent")
    rounds.settle()
    assert any(line.startswith("None of ") for line in told(rounds))


# -- the story


def told_story(rounds: Rounds, key: str) -> list[str]:
    job = rounds.job(key).job_id
    messages = [LEDGER_MESSAGE.validate_json(data) for data in rounds.stored]
    return [line.text for message in messages for line in story(message, job)]


def test_a_story_tells_of_holds_classes_and_who_evicted_it() -> None:
    rounds = full()
    first = rounds.job("first").job_id
    rounds.commit(HoldRequested(kind="hold_requested", job_id=first, tenant="lab"))
    rounds.commit(HoldRequested(kind="hold_requested", job_id=first, undo=True))
    rounds.commit(PriorityRequested(kind="priority_requested", job_id=first, priority_class="normal"))
    rounds.commit(PriorityRequested(kind="priority_requested", job_id=first, priority_class="low"))
    rounds.settle()
    lines = told_story(rounds, "first")
    assert "held by lab" in lines
    assert "let go by operator" in lines
    assert "priority class normal from now on" in lines
    preemptor = rounds.job("it").job_id
    assert any(line.endswith(f"(for job {preemptor})") for line in lines)
    kept = "devices are kept for it (preemption, preset priority), once 1 run has stopped"
    assert kept in told_story(rounds, "it")


def test_a_story_of_elastic_pods_counts_them() -> None:
    rounds = Rounds(nodes={"node-a": 8}, grow_after_seconds=0)
    rounds.submit("it", gpus=1, pods=2, max_replicas=4)
    rounds.settle()
    assert "grows by 2 pods" in told_story(rounds, "it")


def test_a_long_story_shows_its_end_and_says_what_it_left_out() -> None:
    lines = list(story_lines([StoryLine(n, NOW, "waits: " + "word " * 40).line() for n in range(100)]))
    assert lines[0].startswith("(60 earlier lines")
    assert max(map(cell_len, lines)) <= COLUMNS


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (QUEUES, queue_rows([QueueView(name=LONG, pool="p", quotas=(use(10**6),))], [])[0]),
        (QUOTAS, quota_rows([QueueView(name=LONG, pool="p", quotas=(QuotaUse(resource=LONG, flavor=LONG),))])[0]),
        (VICTIMS, Victim("r" * 24, "j", "t", LONG, LONG, 10**9, 10**9, ("n" * 253,))),
    ],
    ids=["queues", "quotas", "victims"],
)
def test_tables_fit_80_columns_whatever_they_hold(columns: list, row: object) -> None:  # type: ignore[type-arg]
    assert max(map(cell_len, table(columns, [row]))) <= COLUMNS


def test_a_tenant_that_looks_at_its_job_reads_no_other_tenants_name() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="off")
    theirs = admitted("theirs", job_spec(role(gpus=8), name="secret"), tenant="other")
    rounds.commit(theirs)
    rounds.settle()
    rounds.submit("it", gpus=8)
    rounds.settle()
    value = json.dumps(answered(rounds, viewer="lab"))
    for name in (theirs.job_id, "secret"):
        assert name not in value
        assert name not in "\n".join(told(rounds, viewer="lab"))


def test_a_job_that_is_queued_again_at_once_is_not_told_a_moment_in_1970() -> None:
    def told(**more: int) -> str:
        record = Requeued(kind="requeued", job_id="a" * 20, reason=Reason(code=Code.NODE_LOST), **more)
        message = LedgerMessage.model_construct(n=1, ts=NOW, facts=(), records=(record,))
        (line,) = story(message, "a" * 20)
        return line.text

    assert told(not_before=0) == told(not_before=NOW) == "queued again"
    assert told(not_before=NOW + 20_000) == "queued again, not before 10-09 08:53:40"
