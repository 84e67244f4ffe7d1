"""The views in Redis: brought up to date field by field, or built anew, they are the same bytes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.slurm.listing.fields import reason_of
from tessera.domain.entities import Use
from tessera.domain.quota.parts import OUT_MS
from tessera.domain.state import State
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.views import NODES, Views, all_views
from tessera.scheduler import decide
from tessera.testkit.sim.planner import plan_for
from tessera_schemas.cluster.device_claims import GresClass
from tessera_schemas.cluster.pools import Pool
from tessera_schemas.config import Config, ConfigBody, Flavor, PriorityClass, Queue, Quota
from tessera_schemas.facts import (
    CancelRequested,
    CheckpointSaved,
    DrainRequested,
    HoldRequested,
    NodeSeen,
    PodsMade,
    PriorityRequested,
    RunEnded,
    RunStarted,
)
from tessera_schemas.job import Retry
from tessera_schemas.ledger import ConfigSet, EarmarkEnded, EarmarkSet, JobQueued, NodeChanged
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.keys import VIEWS
from tessera_schemas.views import JobView, NodeView, QueueView
from tessera_schemas.work.arrays import JobArray
from tests.builders import (
    Chain,
    admitted,
    config_body,
    config_proposed,
    first_run,
    job_spec,
    node_seen,
    placement,
    queue,
    role,
    run_absent,
    work_refused,
)
from tests.ledgers import Committed
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
    whole_gpus,
    with_network,
)
from tests.random_ledger import random_ledger
from tests.unit.scheduler import suspected_nodes

MODELS: dict[str, Any] = {"jobs": JobView, "queues": QueueView, "nodes": NodeView, "config": Config, "refused": JobView}
MODELS["remembered_nodes"] = NodeView
PREEMPTS = {"preset": "priority", "min_runtime_seconds": 0}
Rows = dict[str, dict[str, bytes]]


def rebuilt(state: State, **ended: int) -> Rows:
    rows: Rows = {view: {} for view in VIEWS}
    for change in all_views(state, **ended):
        assert change.value is not None
        rows[change.view][change.key] = change.value
    return rows


class Followed:
    """A reader's picture of the views, kept up to date by what each message touches."""

    def __init__(self, shard: Shard | None = None, **ended: int) -> None:
        self.shard = shard or Shard()
        self.views, self.rows = Views(self.shard.state, **ended), rebuilt(self.shard.state, **ended)
        self.touched: list[tuple[str, str]] = []

    def fold(self, stored: Sequence[bytes]) -> "Followed":
        for data in stored:
            n = self.shard.state.n + 1
            entry = decode_entry(Message("", n, data))
            moved = self.views.moved_by(entry.message, partial(self.shard.fold, entry))
            self.touched = list(moved)
            for view, key in self.touched:
                value = self.views.value((view, key))
                if value is None:
                    self.rows[view].pop(key, None)
                else:
                    self.rows[view][key] = value
        return self

    def view(self, view: str, key: str) -> Any:
        return MODELS[view].from_bytes(self.rows[view][key])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_following_and_rebuilding_give_the_same_content_at_every_n(seed):
    ledger, followed = random_ledger(seed, 40), Followed()
    for data in ledger.stored:
        followed.fold([data])
        assert followed.rows == rebuilt(followed.shard.state)
    assert views_digest(followed.rows) == views_digest(rebuilt(ledger.state))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 5), st.integers(0, 600))
def test_with_few_ended_jobs_shown_following_and_rebuilding_agree_at_every_n(seed, ended_max, ended_seconds):
    bounds = {"ended_max": ended_max, "ended_seconds": ended_seconds}
    ledger, followed = random_ledger(seed, 40), Followed(None, **bounds)
    for data in ledger.stored:
        followed.fold([data])
        state = followed.shard.state
        assert followed.rows == rebuilt(state, **bounds)
        ends = sorted((job.ended_ts, key) for key, job in state.ended.items())
        young = [end for end in ends if end[0] >= state.ts - 1000 * ended_seconds]
        shown = [end for end in ends if end[1] in followed.rows["jobs"]]
        assert shown == young[max(0, len(young) - ended_max) :]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 60))
def test_following_from_a_state_in_the_middle_gives_the_same_content(seed, start):
    ledger, shard = random_ledger(seed, 60), Shard()
    Followed(shard).fold(ledger.stored[:start])
    assert Followed(shard).fold(ledger.stored[start:]).rows == rebuilt(ledger.state)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9))
def test_every_value_is_what_its_model_writes(seed):
    for change in all_views(random_ledger(seed).state):
        model = MODELS[change.view].model_validate_json(change.value)
        assert model.to_bytes() == change.value


def test_a_job_is_shown_from_its_submit_until_its_key_is_forgotten():
    ledger = Committed().begin(body=config_body(policy={"key_memory_seconds": 60}))
    job_id = ledger.run_to_its_end(gpus=2)
    views = Followed().fold(ledger.stored)
    shown = views.view("jobs", job_id)
    assert (shown.phase, shown.attempt, shown.gpu_milli, shown.placements) == ("succeeded", 1, 2000, ())
    assert shown.submitted_ts < shown.started_ts < shown.ended_ts
    ledger.commit(ms=60_000)
    assert job_id not in views.fold(ledger.stored[-1:]).rows["jobs"]


def test_a_job_shows_where_it_is_for_as_long_as_its_devices_are_held():
    ledger = Committed().begin()
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    run, views = first_run(), Followed()
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("uid-1",)))
    ledger.commit(RunStarted(kind="run_started", run_id=run))
    ledger.commit(RunEnded(kind="run_ended", run_id=run))
    views.fold(ledger.stored)
    assert (views.view("jobs", run[:-2]).phase, len(views.view("jobs", run[:-2]).placements)) == ("succeeded", 1)
    ledger.commit(run_absent(run))
    assert views.fold(ledger.stored[-1:]).view("jobs", run[:-2]).placements == ()


def test_a_job_shows_what_it_holds_beside_what_its_gang_asks_for():
    """It may have grown beyond its gang, or pods of it may have ended."""
    ledger = Committed().begin(body=config_body(policy={"grow_after_seconds": 0}))
    ledger.commit(admitted("k1", job_spec(role(replicas=2, max_replicas=5, gpus=2))))
    ledger.commit(orders=(ledger.line(),))
    run, views = first_run(), Followed()
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("uid-0", "uid-1")))
    ledger.commit(RunStarted(kind="run_started", run_id=run))
    shown = views.fold(ledger.stored).view("jobs", run[:-2])
    assert (shown.pods, shown.gpu_milli, shown.held_pods, shown.held_gpu_milli) == (2, 4000, 5, 10_000)
    at = len(ledger.stored)
    ledger.commit(run_absent(run).model_copy(update={"ranks": (0,)}))
    shown = views.fold(ledger.stored[at:]).view("jobs", run[:-2])
    assert (shown.pods_now, shown.gpu_milli_now) == (4, 8000)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_job_shows_whether_its_pods_have_nodes_to_themselves(exclusive):
    ledger, views = Committed().begin(), Followed()
    ledger.commit(admitted("k1", job_spec(role(gpus=8, exclusive=exclusive))))
    assert views.fold(ledger.stored).view("jobs", admitted("k1").job_id).exclusive is exclusive


def test_an_array_shows_what_one_of_its_tasks_asks_for_while_it_is_live():
    spec = job_spec(role(replicas=2, gpus=1, cpu_milli=4000, memory_bytes=64 << 30), array=JobArray(tasks="0-5"))
    ledger = Committed().begin()
    ledger.commit(admitted("k1", spec))
    job_id, views = admitted("k1").job_id, Followed()
    shown = views.fold(ledger.stored).view("jobs", job_id)
    assert (shown.gpu_milli, shown.cpu_milli, shown.memory_bytes) == (0, 0, 0)
    as_task = shown.as_task
    assert (as_task.gpu_milli, as_task.cpu_milli, as_task.memory_bytes) == (2000, 8000, 128 << 30)
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=job_id, tenant="lab"))
    ledger.commit(ms=1000)
    assert views.fold(ledger.stored[-2:]).view("jobs", job_id).array.task_gpu_milli == 0


def test_the_row_of_an_array_without_a_number_stays_as_an_older_version_stored_it(monkeypatch):
    monkeypatch.setattr(decide, "FORMAT", 3)
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(role(gpus=1), array=JobArray(tasks="0-5"))))
    assert b"task_gpu_milli" not in Followed().fold(ledger.stored).rows["jobs"][admitted("k1").job_id]


def test_a_job_between_two_attempts_shows_that_it_backs_off_and_after_what_until_that_is_over():
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(retry=Retry(on_failure=True, backoff_seconds=30))))
    ledger.commit(orders=(ledger.line(),))
    run, views = first_run(), Followed()
    ledger.commit(PodsMade(kind="pods_made", run_id=run, uids=("uid-0",)))
    ledger.commit(RunStarted(kind="run_started", run_id=run))
    failed = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})
    ledger.commit(RunEnded(kind="run_ended", run_id=run, reason=failed, own=True))
    ledger.commit(run_absent(run))
    shown = views.fold(ledger.stored).view("jobs", run[:-2])
    assert (shown.reason.code, shown.reason.numbers) == ("Backoff", {"until_ts": shown.not_before})
    assert shown.reason.detail.startswith("after: PodFailed: a pod failed")
    assert reason_of(shown) == "BeginTime"
    assert shown.reason.brief() == "it waits before its next attempt, after: PodFailed: a pod failed"
    at = len(ledger.stored)
    ledger.commit(orders=(ledger.line().model_copy(update={"jobs": ()}),))
    ledger.commit(ms=60_000)
    assert views.fold(ledger.stored[at:]).view("jobs", run[:-2]).reason.code == "PodFailed"
    assert views.rows == rebuilt(ledger.state)


def test_an_ended_job_keeps_its_class_and_how_often_it_was_evicted():
    ledger = Committed().begin(node_seen("node-a", 1), body=config_body(policy=PREEMPTS))
    ledger.commit(admitted("k1", job_spec(priority_class="low")))
    ledger.commit(orders=(ledger.line(),))
    low, high = first_run(), first_run("k2")[:-2]
    ledger.commit(PodsMade(kind="pods_made", run_id=low, uids=("uid-0",)))
    ledger.commit(RunStarted(kind="run_started", run_id=low))
    ledger.commit(admitted("k2", job_spec(priority_class="high")))
    made = plan_for(ledger.state, ledger.state.jobs.get(high), [ledger.state.runs.get(low)])
    assert made is not None
    ledger.commit(made)
    ledger.commit(run_absent(low))
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=low[:-2], tenant="lab"))
    shown = Followed().fold(ledger.stored).view("jobs", low[:-2])
    assert (shown.phase, shown.priority_class, shown.evictions) == ("cancelled", "low", 1)


def test_a_queue_shows_what_waits_and_what_it_holds():
    ledger = Committed().begin()
    ledger.commit(admitted("k1", job_spec(role(gpus=8))), admitted("k2", job_spec(role(gpus=8))))
    ledger.commit(admitted("k3", job_spec(role(gpus=8))))
    ledger.commit(orders=(ledger.line(),))
    shown = Followed().fold(ledger.stored).view("queues", "research")
    assert (shown.queued, shown.live, shown.used_gpu_milli, shown.pool) == (1, 2, 16_000, "default")


def test_a_queue_that_the_configuration_dropped_is_shown_while_something_is_in_it():
    ledger, views = Committed().begin(), Followed()
    ledger.commit(admitted("k1"))
    ledger.commit(config_proposed(config_body(queue("other")), 1, abandon=True))
    views.fold(ledger.stored)
    assert (views.view("queues", "research").queued, views.view("queues", "research").pool) == (1, "")
    assert views.view("queues", "other").queued == 0
    ledger.commit(config_proposed(config_body(queue("third")), 2))
    assert "other" not in views.fold(ledger.stored[-1:]).rows["queues"]


def test_new_priorities_are_shown_on_the_jobs_that_have_them():
    ledger, views = Committed().begin(), Followed()
    ledger.commit(admitted("k1"))
    ledger.commit(
        config_proposed(config_body(priority_classes=(PriorityClass(name="normal", value=7),)), 1),
    )
    assert views.fold(ledger.stored).view("jobs", admitted("k1").job_id).priority == 7


def test_a_node_shows_what_is_free_and_goes_with_its_last_run():
    ledger, views = Committed().begin(node_seen("node-a", gpus=2)), Followed()
    job_id = admitted("k1").job_id
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    assert views.fold(ledger.stored).view("nodes", "node-a").gpu_free == (0, 1000)
    gone = NodeSeen(kind="node_seen", name="node-a", gone=True)
    ledger.commit(gone, *_failed(f"{job_id}-1"))
    views.fold(ledger.stored[-1:])
    assert (views.view("nodes", "node-a").gone, views.view("nodes", "node-a").ready) == (True, False)
    ledger.commit(run_absent(f"{job_id}-1"))
    assert views.fold(ledger.stored[-1:]).rows["nodes"] == {}


def _failed(run_id: str) -> tuple[PodsMade, RunEnded]:
    why = {"code": "PodFailed"}
    made = PodsMade(kind="pods_made", run_id=run_id, uids=("uid-1",))
    return made, RunEnded.model_validate({"kind": "run_ended", "run_id": run_id, "reason": why})


def test_an_earmark_takes_from_what_a_node_shows_as_free_and_gives_it_back():
    chain, owner, views = Chain(), admitted("k1"), Followed()
    chain.add(facts=[config_proposed(), node_seen("node-a", gpus=2), owner])
    chain.add(
        ConfigSet(kind="config_set", fact=0, version=1),
        NodeChanged(kind="node_changed", fact=1),
        JobQueued(kind="job_queued", fact=2, job_id=owner.job_id),
        EarmarkSet(
            kind="earmark_set", owner=owner.job_id, cause="head", deadline=chain.ts + 60_000, placements=(placement(),)
        ),
        facts=[config_proposed(), node_seen("node-a", gpus=2), owner],
    )
    assert views.fold(chain.stored).view("nodes", "node-a").gpu_free == (0, 1000)
    chain.add(EarmarkEnded(kind="earmark_ended", owner=owner.job_id, why="deadline"))
    assert views.fold(chain.stored[-1:]).view("nodes", "node-a").gpu_free == (1000, 1000)


def test_a_held_job_its_priority_and_its_place_kept_are_shown():
    ledger, views, job_id = Committed().begin(), Followed(), admitted("k1").job_id
    ledger.commit(admitted("k1"))
    ledger.commit(HoldRequested(kind="hold_requested", job_id=job_id, tenant="lab"))
    ledger.commit(
        PriorityRequested(kind="priority_requested", job_id=job_id, tenant="lab", priority_class="high"),
    )
    shown = views.fold(ledger.stored).view("jobs", job_id)
    assert (shown.held, shown.priority_class, shown.priority) == (True, "high", 100)
    ledger.commit(HoldRequested(kind="hold_requested", job_id=job_id, tenant="lab", undo=True))
    assert not views.fold(ledger.stored[-1:]).view("jobs", job_id).held


def test_a_preempted_job_shows_its_evictions_and_its_preemptor_until_when_room_is_kept():
    ledger, views = Committed().begin(node_seen("node-a", gpus=1), body=config_body(policy=PREEMPTS)), Followed()
    low, high = admitted("k1", job_spec(priority_class="low")), admitted("k2", job_spec(priority_class="high"))
    ledger.commit(low)
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("uid-1",)))
    ledger.commit(RunStarted(kind="run_started", run_id=first_run()))
    ledger.commit(CheckpointSaved(kind="checkpoint_saved", run_id=first_run(), path="/data/7"))
    views.fold(ledger.stored)
    shown = views.view("jobs", low.job_id)
    assert (shown.saved_ts, shown.saved_path) == (ledger.ts, "/data/7")
    ledger.commit(high)
    state = ledger.state
    ledger.commit(plan_for(state, state.jobs.get(high.job_id), [state.runs.get(first_run())]))
    views.fold(ledger.stored[-2:])
    assert views.view("jobs", high.job_id).earmarked_until == ledger.ts + 600_000
    assert views.view("nodes", "node-a").gpu_free == (0,)
    ledger.commit(run_absent(first_run()))
    views.fold(ledger.stored[-1:])
    assert (views.view("jobs", low.job_id).evictions, views.view("jobs", low.job_id).saved_ts) == (1, 0)
    assert views.view("jobs", high.job_id).earmarked_until == 0


def test_a_drained_node_is_shown_as_drained_until_it_is_common_again():
    ledger, views = Committed().begin(), Followed()
    ledger.commit(DrainRequested(kind="drain_requested", node="node-a", why="new fans"))
    shown = views.fold(ledger.stored).view("nodes", "node-a")
    assert (shown.drained, shown.drain_why, shown.ready) == (True, "new fans", True)
    ledger.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))
    assert not views.fold(ledger.stored[-1:]).view("nodes", "node-a").drained


def test_nodes_show_the_flavor_that_a_new_configuration_gives_them():
    ledger, views = Committed().begin(), Followed()
    fast = Flavor(name="fast", gpu_models=("h100",))
    ledger.commit(config_proposed(config_body(flavors=(fast,)), 1))
    assert views.fold(ledger.stored).view("nodes", "node-a").flavor == "fast"


def test_nodes_that_are_remembered_at_their_best_show_it_too():
    ledger, views = Committed().begin(node_seen("node-a")), Followed()
    ledger.commit(node_seen("node-a", gpus=4))
    ledger.commit(config_proposed(config_body(flavors=(Flavor(name="fast", gpu_models=("h100",)),)), 1))
    assert views.fold(ledger.stored).view("remembered_nodes", "node-a").flavor == "fast"


def test_what_is_taken_of_a_network_is_shown_on_every_node_that_it_reaches():
    layout = with_network(whole_gpus(1), 2)
    named = [offering(name, layout, 1) for name in ("node-a", "node-b")]
    ledger, views = Committed().begin(layout_seen(layout), *named), Followed()
    wanted = claiming(claim("link", 1, NIC_DRIVER))
    ledger.commit(admitted("k1", job_spec(wanted)), admitted("k2", job_spec(claiming(claim()))))
    # Of what classes take a node shows more as soon as that is known, and jobs in line count by it.
    ledger.commit(class_seen(NIC_DRIVER, "link"), selected(layout, 0b110, "link"))
    ledger.commit(class_seen(DRIVER, "gpu"), selected(layout, 0b001, "gpu"))
    ledger.commit(orders=(ledger.line(),))
    for data in ledger.stored:
        views.fold([data])
        assert views.rows == rebuilt(views.shard.state)
    for name in ("node-a", "node-b"):
        assert (NIC_DRIVER, 2, 1, 0) in views.view("nodes", name).device_classes


def sharing() -> ConfigBody:
    quotas = tuple(Quota(resource="gpu_milli", nominal=4000, flavor=flavor) for flavor in ("", "fast"))
    return config_body(
        Queue(name="all"),
        *(Queue(name=name, parent="all", quotas=quotas) for name in ("research", "batch")),
        flavors=(Flavor(name="fast", gpu_models=("h100",)),),
    )


def test_a_queue_shows_what_it_borrows_and_the_one_beside_it_what_it_lent():
    ledger, views = Committed().begin(node_seen("node-a"), body=sharing()), Followed()
    ledger.commit(*(admitted(f"k{i}", job_spec(role(gpus=3))) for i in range(2)))
    ledger.commit(orders=(ledger.line(),))
    views.fold(ledger.stored)
    borrower, lender, top = (views.view("queues", name) for name in ("research", "batch", "all"))
    assert [(q.used, q.borrowed, q.lent, q.available) for q in borrower.quotas] == [(6000, 2000, 0, 2000)] * 2
    assert [(q.used, q.borrowed, q.lent, q.available) for q in lender.quotas] == [(0, 0, 2000, 2000)] * 2
    assert (borrower.parent, borrower.inner, top.inner, top.quotas) == ("all", False, True, ())
    assert set(views.rows["queues"]) == {"all", "batch", "research"}, "what is held of a flavor is no queue"


def test_a_quota_that_is_a_part_of_its_pool_is_shown_as_it_follows_the_nodes():
    half = Quota(resource="gpu_milli", nominal=0, part_percent=50)
    ledger, views = Committed().begin(body=config_body(Queue(name="research", quotas=(half,)))), Followed()
    seen = []
    for ms in (1000, OUT_MS):
        ledger.commit(node_seen("node-b", gone=True), ms=ms)
        (quota,) = views.fold(ledger.stored[views.shard.state.n :]).view("queues", "research").quotas
        seen.append((quota.nominal, quota.available, quota.part_percent))
    assert seen == [(8000, 8000, 50), (4000, 4000, 50)]


def test_nothing_is_shown_before_the_first_configuration():
    assert all_views(State()) == []


def test_a_message_touches_only_what_it_is_about():
    ledger, views = Committed().begin(), Followed()
    for i in range(20):
        ledger.commit(admitted(f"k{i}"))
    views.fold(ledger.stored)
    assert sorted(views.touched) == [("jobs", admitted("k19").job_id), ("queues", "research")]


@pytest.mark.parametrize("live", [0, 1])
def test_an_unknown_queue_is_shown_only_while_runs_hold_something_for_it(live):
    state = State()
    state.queue_use.put("ghost", Use("ghost", live))
    assert [change.key for change in all_views(state)] == ["ghost"] * live


def test_refused_work_is_shown_until_it_is_refused_no_more():
    books = Committed()
    books.begin(node_seen("a"))
    followed = Followed().fold(books.stored)
    books.commit(work_refused())
    followed.fold(books.stored[-1:])
    (stored,) = followed.rows["refused"].values()
    shown = JobView.from_bytes(stored)
    assert (shown.phase, shown.name, shown.owner, shown.queue) == ("refused", "train", "Job/train", "nowhere")
    assert shown.reason is not None
    assert shown.reason.code == "NoSuchQueue"
    assert followed.rows == rebuilt(books.state)
    books.commit(work_refused(refused=False))
    assert followed.fold(books.stored[-1:]).rows["refused"] == {}


def test_what_becomes_known_of_devices_is_in_the_views_of_their_nodes_and_of_the_jobs_that_claim_them() -> None:
    layout, other = whole_gpus(4), gpus_with_nics(4)
    ledger = Committed().begin(offering("node-0", layout, 4), offering("node-1", other, 4), node_seen("node-2"))
    ledger.commit(admitted("k1", job_spec(claiming(claim(count=9)))))
    ledger.commit(layout_seen(layout))
    ledger.commit(class_seen())
    ledger.commit(layout_seen(other), class_seen("net", "nic"))
    ledger.commit(selected(other, 0xF0, "nic"))
    ledger.commit(class_seen(gone=True))
    followed = Followed()
    for data in ledger.stored:
        followed.fold([data])
        assert followed.rows == rebuilt(followed.shard.state)
    assert followed.view("nodes", "node-1").device_classes == (("net", 4, 0, 0),)
    assert ("nodes", "node-2") not in followed.touched


def test_views_name_the_classes_of_a_job_s_requests_and_their_generic_resources() -> None:
    layout = gpus_with_nics(4)
    ledger = Committed().begin(layout_seen(layout), offering("node-0", layout, 4), class_seen("net", "nic"))
    ledger.commit(selected(layout, 0xF0, "nic"))
    for key in ("k1", "k2"):
        ledger.commit(admitted(key, job_spec(claiming(claim("card", 2, "net"), claim("any", 1, DRIVER)))))
    followed = Followed().fold(ledger.stored)
    job = followed.view("jobs", admitted("k1").job_id)
    assert job.device_classes == ((DRIVER, 1), ("net", 2))
    assert job.claimed == (("worker", "card", "devices", "net"), ("worker", "any", "devices", DRIVER))
    assert job.gres == ((DRIVER, DRIVER), ("net", "net"))
    ledger.commit(class_seen())
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=admitted("k2").job_id))
    tabled = config_body(gres=(GresClass(name="nic", device_class="net"),))
    ledger.commit(config_proposed(tabled, ledger.state.config.version))
    ledger.commit(class_seen(gone=True))
    for data in ledger.stored[followed.shard.state.n :]:
        followed.fold([data])
        assert followed.rows == rebuilt(followed.shard.state)
        if followed.shard.state.device_classes.get(DRIVER) is not None:
            assert dict(followed.view("jobs", admitted("k1").job_id).gres)[DRIVER] == "gpu"
    assert dict(followed.view("jobs", admitted("k2").job_id).gres)["net"] == "nic"
    assert dict(followed.view("nodes", "node-0").gres) == {"net": "nic"}


def test_a_node_that_becomes_a_spare_in_the_place_of_another_is_shown_as_one() -> None:
    pools = (Pool(name="default", spare_nodes=1),)
    made = Committed()
    made.begin(node_seen("node-a"), node_seen("node-b"), body=config_body(pools=pools))
    followed = Followed().fold(made.stored)
    assert [followed.view(NODES, name).spare for name in ("node-a", "node-b")] == [True, False]
    before = len(made.stored)
    made.commit(DrainRequested(kind="drain_requested", node="node-a"))
    followed.fold(made.stored[before:])
    assert [followed.view(NODES, name).spare for name in ("node-a", "node-b")] == [False, True]
    assert followed.rows == rebuilt(followed.shard.state)


def test_the_last_test_job_of_a_node_is_shown_from_its_proposal_to_its_end() -> None:
    made = suspected_nodes.suspects("node-03", nodes=10)
    followed = Followed().fold(made.stored)
    before = len(made.stored)
    run = suspected_nodes.start_test(made, "node-03")
    followed.fold(made.stored[before:])
    shown = followed.view(NODES, "node-03").test
    assert (shown.job_id, shown.outcome, shown.ended_ts) == (run.rpartition("-")[0], "", 0)
    before = len(made.stored)
    suspected_nodes.end(made, run, None)
    followed.fold(made.stored[before:])
    shown = followed.view(NODES, "node-03").test
    assert (shown.outcome, shown.ended_ts > 0, shown.passes) == ("passed", True, 1)
    assert followed.rows == rebuilt(followed.shard.state)
