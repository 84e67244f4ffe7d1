"""Every record kind moves the state as its docstring says, and is refused where it contradicts the state."""

from collections.abc import Callable

import pytest

from tessera.domain.devices.resources import Amount
from tessera.domain.entities import Run
from tessera.domain.errors import Contradiction, IllegalMove, UnknownFormat
from tessera.domain.folding.fold import apply_record, fold_message, take_in
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.ordering import order_jobs
from tessera_schemas.base import run_id
from tessera_schemas.config import PriorityClass
from tessera_schemas.facts import AnyFact, NodeSeen, Others, owner
from tessera_schemas.ledger import (
    LEDGER_MESSAGE,
    Allocated,
    AnyRecord,
    Bound,
    Checkpoint,
    ConfigRefused,
    ConfigSet,
    EarmarkEnded,
    EarmarkSet,
    EpochOpened,
    Finished,
    FormatRaised,
    JobMoved,
    JobQueued,
    JobTurnedAway,
    NodeChanged,
    Permitted,
    Released,
    Requeued,
    Revoked,
    Started,
    TakenFact,
    Waiting,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import Order
from tessera_schemas.work.placement import Placement
from tests.builders import (
    GIB,
    Chain,
    admitted,
    config_body,
    config_proposed,
    job_spec,
    node_seen,
    placement,
    queue,
    role,
)

JOB = admitted("k1").job_id
RUN = run_id(JOB, 1)
WHY = Reason(code=Code.POD_FAILED)
NO_FIT = Reason(code=Code.NO_FIT)


class Books:
    """A state with a configuration and one node of 8 GPUs, moved record by record."""

    def __init__(self) -> None:
        self.state = State()
        self.write(ConfigSet(kind="config_set", fact=0, version=1), config_proposed())
        self.node()

    def write(self, record: AnyRecord, *facts: AnyFact, ms: int = 1000) -> None:
        taken = tuple(TakenFact(seq=i + 1, service=owner(fact), fact=fact) for i, fact in enumerate(facts))
        take_in(self.state, self.state.n + 1, self.state.ts + ms, 0, ())
        apply_record(self.state, record, taken)

    def node(self, name: str = "node-a", **more: object) -> None:
        seen = node_seen(name, **more)  # type: ignore[arg-type]
        self.write(NodeChanged(kind="node_changed", fact=0), seen)

    def queued(self, key: str = "k1", **spec: object) -> "Books":
        fact = admitted(key, job_spec(role(**spec)))  # type: ignore[arg-type]
        self.write(JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), fact)
        return self

    def allocated(self, *placements: Placement, attempt: int = 1) -> "Books":
        places = placements or (placement(),)
        self.write(
            Allocated(kind="allocated", job_id=JOB, attempt=attempt, deadline=self.state.ts + 60_000, placements=places)
        )
        return self

    def permitted(self, *uids: str) -> "Books":
        self.write(Permitted(kind="permitted", run_id=RUN, uids=uids or ("uid-0",)))
        return self

    def running(self) -> "Books":
        self.queued().allocated().permitted()
        self.write(Started(kind="started", run_id=RUN))
        return self

    def revoked(self, then: str = "requeue") -> "Books":
        self.write(Revoked.model_validate({"kind": "revoked", "run_id": RUN, "reason": WHY, "then": then}))
        return self

    def released(self) -> "Books":
        self.write(Released(kind="released", run_id=RUN))
        return self

    def finished(self, phase: str) -> "Books":
        self.write(Finished.model_validate({"kind": "finished", "job_id": JOB, "phase": phase}))
        return self

    @property
    def phase(self) -> Phase:
        job = self.state.jobs.get(JOB)
        assert job is not None
        return job.phase

    @property
    def run(self) -> Run:
        run = self.state.runs.get(RUN)
        assert run is not None
        return run

    def gpus(self, node: str = "node-a") -> tuple[int, ...]:
        seen = self.state.nodes.get(node)
        assert seen is not None
        return seen.gpu_free

    def held(self, queue_name: str = "research") -> Amount:
        return self.state.held_by_queue(queue_name)


# -- a job's life ---------------------------------------------------------------------------------------------------


def test_a_queued_job_counts_for_its_tenant_and_stands_in_line() -> None:
    books = Books().queued(gpus=2, replicas=3)
    use = books.state.tenant_use.get("lab")
    assert use is not None
    assert (use.jobs, use.amount) == (1, Amount(3000, 3 * GIB, 6000))
    assert list(order_jobs(books.state, "default", books.state.ts)) == [JOB]
    assert books.held() == Amount()


def test_an_allocation_holds_devices_cpu_memory_and_a_pod_and_counts_for_the_queue() -> None:
    books = Books().queued(gpus=2).allocated(placement(devices=(0, 3)))
    node = books.state.nodes.get("node-a")
    assert node is not None
    assert node.gpu_free == (0, 1000, 1000, 0, 1000, 1000, 1000, 1000)
    assert (node.cpu_free, node.memory_free, node.pods_free) == (63_000, 511 * GIB, 109)
    assert books.held() == Amount(1000, GIB, 2000)
    assert books.phase is Phase.ALLOCATED
    assert not list(order_jobs(books.state, "default", books.state.ts))


def test_a_share_takes_only_its_thousandths_of_the_device() -> None:
    books = Books().queued(gpus=0, gpu_milli=300).allocated(placement(devices=(2,), gpu_milli=300))
    assert books.gpus()[2] == 700


def test_permit_bound_and_start_move_the_run_along() -> None:
    books = Books().queued().allocated().permitted("uid-x")
    assert (books.phase, books.run.uids) == (Phase.BINDING, ("uid-x",))
    books.write(Bound(kind="bound", run_id=RUN))
    assert (books.phase, books.run.bound) == (Phase.BINDING, True)
    books.write(Started(kind="started", run_id=RUN))
    assert (books.phase, books.run.started) == (Phase.RUNNING, True)
    assert not books.state.index.start_by


def test_a_success_ends_the_job_and_holds_the_devices_until_release() -> None:
    books = Books().running().finished("succeeded")
    ended = books.state.ended.get(JOB)
    assert ended is not None
    assert (ended.phase, ended.pods, ended.attempt) == (Phase.SUCCEEDED, 1, 1)
    assert books.state.jobs.get(JOB) is None
    assert books.gpus()[0] == 0
    assert books.held().gpu_milli == 1000
    books.released()
    assert books.gpus()[0] == 1000
    assert books.held() == Amount()


def test_a_job_that_ended_no_longer_counts_for_its_tenant() -> None:
    use = Books().running().finished("succeeded").state.tenant_use.get("lab")
    assert use is not None
    assert (use.jobs, use.amount) == (0, Amount())


def test_an_evicted_run_is_released_before_its_job_waits_again() -> None:
    books = Books().running().revoked()
    assert (books.phase, books.gpus()[0]) == (Phase.EVICTING, 0)
    books.released()
    assert books.gpus()[0] == 1000
    books.write(Requeued(kind="requeued", job_id=JOB, not_before=books.state.ts + 5, reason=WHY))
    job = books.state.jobs.get(JOB)
    assert job is not None
    assert (job.phase, job.strikes, job.attempt, job.reason, job.started_ts) == (Phase.QUEUED, 1, 1, WHY, 0)
    books.allocated(attempt=2)
    assert books.state.runs.get(run_id(JOB, 2)) is not None


def test_a_cancel_overtakes_the_requeue_of_a_run_on_its_way_out() -> None:
    books = Books().running().revoked("requeue").revoked("cancelled")
    assert books.run.then == "cancelled"
    assert books.released().finished("cancelled").state.ended.get(JOB) is not None


def test_a_reason_to_wait_is_kept_and_gone_with_the_allocation() -> None:
    books = Books().queued()
    books.write(Waiting(kind="waiting", job_id=JOB, reason=NO_FIT))
    job = books.state.jobs.get(JOB)
    assert job is not None
    assert job.reason == NO_FIT
    books.allocated()
    job = books.state.jobs.get(JOB)
    assert job is not None
    assert job.reason is None


@pytest.mark.parametrize(
    "record",
    [
        Checkpoint(kind="checkpoint", state_hash="0" * 64),
        ConfigRefused(kind="config_refused", fact=0, reason=WHY),
        JobTurnedAway(kind="job_turned_away", fact=0, reasons=(WHY,)),
    ],
    ids=lambda record: record.kind,
)
def test_an_audit_record_changes_nothing(record: AnyRecord) -> None:
    books = Books().queued()
    before = [dict(getattr(books.state, name).items()) for name in ("jobs", "ended", "runs", "nodes", "tenant_use")]
    books.write(record, admitted("other"))
    after = [dict(getattr(books.state, name).items()) for name in ("jobs", "ended", "runs", "nodes", "tenant_use")]
    assert before == after


# -- configuration, epochs, formats ---------------------------------------------------------------------------------


def test_a_new_configuration_moves_waiting_jobs_to_their_queues_new_pool() -> None:
    books = Books().queued()
    books.write(
        ConfigSet(kind="config_set", fact=0, version=2), config_proposed(config_body(queue("research", pool="blue")))
    )
    assert list(order_jobs(books.state, "blue", books.state.ts)) == [JOB]
    assert not list(order_jobs(books.state, "default", books.state.ts))


def test_a_job_whose_queue_is_gone_is_in_no_line_until_the_queue_is_back() -> None:
    books = Books().queued()
    books.write(ConfigSet(kind="config_set", fact=0, version=2), config_proposed(config_body(queue("else"))))
    assert not list(order_jobs(books.state, "default", books.state.ts))
    assert list(books.state.index.strays) == [JOB]
    books.write(ConfigSet(kind="config_set", fact=0, version=3), config_proposed())
    assert list(order_jobs(books.state, "default", books.state.ts)) == [JOB]
    assert not books.state.index.strays


def test_before_format_4_jobs_of_a_missing_tenant_and_class_stand_in_line_as_they_did() -> None:
    """So an order that was computed then is computed again by a replay; from format 4 on they are left out, or last."""
    books = Books().queued("k1")
    theirs = admitted("theirs", job_spec(priority_class="low"), tenant="other")
    books.write(JobQueued(kind="job_queued", fact=0, job_id=theirs.job_id), theirs)
    classes = (PriorityClass(name="deep", value=-9), PriorityClass(name="low", value=-1))
    body = config_body(tenants=("other",), priority_classes=classes)
    books.write(ConfigSet(kind="config_set", fact=0, version=2), config_proposed(body))
    assert list(order_jobs(books.state, "default", books.state.ts)) == [JOB, theirs.job_id]
    books.write(FormatRaised(kind="format_raised", format=4))
    assert list(order_jobs(books.state, "default", books.state.ts)) == [theirs.job_id]
    books.write(ConfigSet(kind="config_set", fact=0, version=3), config_proposed(config_body(priority_classes=classes)))
    assert list(order_jobs(books.state, "default", books.state.ts)) == [theirs.job_id, JOB]


def test_a_job_that_moves_takes_its_run_and_what_that_holds_with_it() -> None:
    books = Books().running()
    books.write(JobMoved(kind="job_moved", job_id=JOB, queue="else"))
    job, run = books.state.jobs.get(JOB), books.state.runs.get(RUN)
    assert job is not None
    assert run is not None
    assert (job.queue, run.queue, run.placements) == ("else", "else", (placement(),))
    assert books.state.held_by_queue("else").gpu_milli == 1000
    assert books.state.held_by_queue("research").gpu_milli == 0
    assert books.state.index.held.keys() == {("else", "lab"), ("else", "lab", "")}


def test_new_priorities_reorder_the_line() -> None:
    books = Books().queued("k1")
    for key in ("k2", "k3"):
        fact = admitted(key, job_spec(priority_class="high"))
        books.write(JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), fact)
    k2, k3 = admitted("k2").job_id, admitted("k3").job_id
    assert list(order_jobs(books.state, "default", books.state.ts)) == [k2, k3, JOB]
    classes = (PriorityClass(name="normal", value=5), PriorityClass(name="high", value=1))
    books.write(ConfigSet(kind="config_set", fact=0, version=2), config_proposed(config_body(priority_classes=classes)))
    assert list(order_jobs(books.state, "default", books.state.ts)) == [JOB, k2, k3]


def test_an_epoch_only_rises() -> None:
    books = Books()
    books.write(EpochOpened(kind="epoch_opened", epoch=2, holder="s"))
    assert books.state.epoch == 2
    with pytest.raises(Contradiction, match="epoch 2 opened after 2"):
        books.write(EpochOpened(kind="epoch_opened", epoch=2, holder="s"))


def test_a_format_of_a_newer_build_is_unknown() -> None:
    with pytest.raises(UnknownFormat):
        Books().write(FormatRaised(kind="format_raised", format=99))


# -- keys that are forgotten ----------------------------------------------------------------------------------------


def test_the_key_of_an_ended_job_is_forgotten_when_its_time_is_over_and_not_before() -> None:
    books = Books().running().finished("succeeded").released()
    ended = books.state.ended.get(JOB)
    assert ended is not None
    take_in(books.state, books.state.n + 1, ended.forget_ts - 1, 0, ())
    assert books.state.ended.get(JOB) is not None
    take_in(books.state, books.state.n + 1, ended.forget_ts, 0, ())
    assert books.state.ended.get(JOB) is None
    assert not books.state.remembered.due(ended.forget_ts)


def test_a_key_is_not_forgotten_while_its_run_still_holds_devices() -> None:
    """Else the next job of that key would start under the same run id, over the run that is still there."""
    books = Books().running().finished("succeeded")
    ended = books.state.ended.get(JOB)
    assert ended is not None
    take_in(books.state, books.state.n + 1, ended.forget_ts + 1, 0, ())
    assert books.state.ended.get(JOB) is not None
    books.released()
    take_in(books.state, books.state.n + 1, ended.forget_ts + 5000, 0, ())
    assert books.state.ended.get(JOB) is None


# -- nodes that change under their runs -----------------------------------------------------------------------------


def test_a_node_that_shrinks_under_a_run_keeps_the_run_and_may_have_less_than_nothing_free() -> None:
    books = Books().queued(gpus=2, cpu_milli=4000).allocated(placement(devices=(0, 7)))
    books.node(gpus=4, cpu_milli=1000)
    node = books.state.nodes.get("node-a")
    assert node is not None
    assert node.gpu_free == (0, 1000, 1000, 1000)
    assert node.cpu_free == -3000
    books.revoked().released()
    node = books.state.nodes.get("node-a")
    assert node is not None
    assert (node.gpu_free, node.cpu_free) == ((1000,) * 4, 1000)


def test_a_node_that_grows_again_still_knows_who_holds_its_devices() -> None:
    books = Books().queued(gpus=2).allocated(placement(devices=(0, 7)))
    books.node(gpus=4)
    books.node(gpus=8)
    assert books.gpus() == (0, 1000, 1000, 1000, 1000, 1000, 1000, 0)


def test_a_node_that_is_gone_stays_in_the_books_as_long_as_a_run_holds_it() -> None:
    books = Books().queued().allocated()
    books.node(gpus=0, cpu_milli=0, memory_bytes=0, pods=0, gone=True, ready=False)
    node = books.state.nodes.get("node-a")
    assert node is not None
    assert (node.gone, node.ready) == (True, False)
    books.revoked().released()
    assert books.state.nodes.get("node-a") is None


def test_a_node_that_is_gone_and_empty_is_dropped_at_once() -> None:
    books = Books()
    books.write(
        NodeChanged(kind="node_changed", fact=0), NodeSeen(kind="node_seen", name="node-a", gone=True, ready=False)
    )
    assert books.state.nodes.get("node-a") is None


def test_a_node_that_comes_back_under_its_run_is_held_as_before() -> None:
    books = Books().queued().allocated()
    books.node(gpus=0, cpu_milli=0, memory_bytes=0, pods=0, gone=True, ready=False)
    books.node()
    assert books.gpus() == (0, *(1000,) * 7)


def test_what_others_take_of_a_node_is_taken_beside_its_runs_and_back_once_they_are_gone() -> None:
    books = Books().queued().allocated()
    theirs = Others(cpu_milli=2000, pods=3, gpus=2, devices={"rdma/hca": 3})
    books.node(others=theirs, devices={"rdma/hca": 4})
    node = books.state.nodes.get("node-a")
    assert node is not None
    assert (node.cpu_free, node.pods_free, node.gpu_others) == (61_000, 106, (6, 7))
    assert node.devices_free == (("rdma/hca", 1),)
    assert books.gpus() == (0, *(1000,) * 5, 0, 0)
    books.revoked().released()
    assert books.gpus() == (*(1000,) * 6, 0, 0)
    books.node()
    assert books.gpus() == (1000,) * 8


def test_others_that_come_beside_runs_that_hold_everything_have_no_slot_and_the_next_that_is_free() -> None:
    books = Books().queued(gpus=8).allocated(placement(devices=range(8)))
    books.node(others=Others(pods=1, gpus=1))
    assert books.gpus() == (0,) * 8
    books.revoked().released()
    assert books.gpus() == (*(1000,) * 7, 0)


def test_a_node_that_is_gone_under_a_run_and_others_is_dropped_with_the_run() -> None:
    books = Books().queued().allocated()
    books.node(pods=0, gone=True, ready=False, others=Others(pods=4, gpus=1))
    assert books.state.nodes.get("node-a") is not None
    books.revoked().released()
    assert books.state.nodes.get("node-a") is None


# -- earmarks -------------------------------------------------------------------------------------------------------


def earmark(deadline: int = 10**9) -> EarmarkSet:
    return EarmarkSet(
        kind="earmark_set", owner=JOB, cause="preemption", deadline=deadline, placements=(placement(devices=(5,)),)
    )


def test_an_earmark_holds_devices_and_its_end_gives_them_back() -> None:
    books = Books().queued()
    books.write(earmark())
    assert books.gpus()[5] == 0
    assert books.held() == Amount()
    books.write(EarmarkEnded(kind="earmark_ended", owner=JOB, why="used"))
    assert books.gpus()[5] == 1000
    assert books.state.earmarks.get(JOB) is None


def test_a_node_that_changes_keeps_what_is_earmarked_on_it() -> None:
    books = Books().queued()
    books.write(earmark())
    books.node(cpu_milli=32_000)
    assert books.gpus()[5] == 0


# -- what no correct committer writes -------------------------------------------------------------------------------

OTHER = admitted("other").job_id
FINISH = {"kind": "finished", "job_id": JOB}

CONTRADICTIONS: list[tuple[str, Callable[[Books], object], AnyRecord]] = [
    ("a job is queued twice", lambda b: b.queued(), JobQueued(kind="job_queued", fact=0, job_id=JOB)),
    ("the fact is about another job", lambda b: b, JobQueued(kind="job_queued", fact=0, job_id=OTHER)),
    ("a job that is not there waits", lambda b: b, Waiting(kind="waiting", job_id=JOB, reason=NO_FIT)),
    ("a job moves to where it is", lambda b: b.queued(), JobMoved(kind="job_moved", job_id=JOB, queue="research")),
    ("a configuration skips a version", lambda b: b, ConfigSet(kind="config_set", fact=0, version=2)),
    ("a node record points at no node", lambda b: b, NodeChanged(kind="node_changed", fact=0)),
    (
        "an attempt is skipped",
        lambda b: b.queued(),
        Allocated(kind="allocated", job_id=JOB, attempt=2, deadline=1, placements=(placement(),)),
    ),
    (
        "an unknown node is used",
        lambda b: b.queued(),
        Allocated(kind="allocated", job_id=JOB, attempt=1, deadline=1, placements=(placement(node="nowhere"),)),
    ),
    (
        "a run gets a second permit",
        lambda b: b.queued().allocated().permitted(),
        Permitted(kind="permitted", run_id=RUN, uids=("uid-1",)),
    ),
    (
        "a permit names too many pods",
        lambda b: b.queued().allocated(),
        Permitted(kind="permitted", run_id=RUN, uids=("a", "b")),
    ),
    (
        "a revoked run is permitted",
        lambda b: b.queued().allocated().revoked(),
        Permitted(kind="permitted", run_id=RUN, uids=("a",)),
    ),
    ("a run is bound without a permit", lambda b: b.queued().allocated(), Bound(kind="bound", run_id=RUN)),
    ("a run starts without a permit", lambda b: b.queued().allocated(), Started(kind="started", run_id=RUN)),
    (
        "a revoked run starts",
        lambda b: b.queued().allocated().permitted().revoked(),
        Started(kind="started", run_id=RUN),
    ),
    (
        "a run is revoked twice",
        lambda b: b.running().revoked(),
        Revoked(kind="revoked", run_id=RUN, reason=WHY, then="requeue"),
    ),
    (
        "a cancel makes a failed run cancelled",
        lambda b: b.running().revoked("failed"),
        Revoked(kind="revoked", run_id=RUN, reason=WHY, then="cancelled"),
    ),
    (
        "a run that succeeded is revoked",
        lambda b: b.running().finished("succeeded"),
        Revoked(kind="revoked", run_id=RUN, reason=WHY, then="cancelled"),
    ),
    ("a run that may still run is released", lambda b: b.running(), Released(kind="released", run_id=RUN)),
    ("a run is released twice", lambda b: b.running().revoked().released(), Released(kind="released", run_id=RUN)),
    (
        "a job is requeued before its release",
        lambda b: b.running().revoked(),
        Requeued(kind="requeued", job_id=JOB, not_before=1, reason=WHY),
    ),
    (
        "a job fails before its release",
        lambda b: b.running().revoked("failed"),
        Finished.model_validate({**FINISH, "phase": "failed"}),
    ),
    (
        "a job ends twice",
        lambda b: b.running().finished("succeeded"),
        Finished.model_validate({**FINISH, "phase": "succeeded"}),
    ),
    (
        "a job has two earmarks",
        lambda b: b.queued().write(earmark()),
        earmark(),
    ),
    (
        "an earmark ends that is not there",
        lambda b: b.queued(),
        EarmarkEnded(kind="earmark_ended", owner=JOB, why="used"),
    ),
]


@pytest.mark.parametrize(("before", "record"), [c[1:] for c in CONTRADICTIONS], ids=[c[0] for c in CONTRADICTIONS])
def test_a_record_that_contradicts_the_state_is_refused(before: Callable[[Books], object], record: AnyRecord) -> None:
    books = Books()
    before(books)
    with pytest.raises(Contradiction):
        books.write(record, admitted("k1"))


ILLEGAL: list[tuple[str, Callable[[Books], object], AnyRecord]] = [
    ("a queued job succeeds", lambda b: b.queued(), Finished.model_validate({**FINISH, "phase": "succeeded"})),
    ("a queued job fails", lambda b: b.queued(), Finished.model_validate({**FINISH, "phase": "failed"})),
    ("a run starts twice", lambda b: b.running(), Started(kind="started", run_id=RUN)),
    (
        "a running job is requeued",
        lambda b: b.running(),
        Requeued(kind="requeued", job_id=OTHER, not_before=1, reason=WHY),
    ),
    (
        "a running job is allocated",
        lambda b: b.running(),
        Allocated(kind="allocated", job_id=JOB, attempt=2, deadline=1, placements=(placement(devices=(1,)),)),
    ),
]


@pytest.mark.parametrize(("before", "record"), [c[1:] for c in ILLEGAL], ids=[c[0] for c in ILLEGAL])
def test_a_move_that_the_table_does_not_list_is_refused(before: Callable[[Books], object], record: AnyRecord) -> None:
    books = Books()
    before(books)
    with pytest.raises((IllegalMove, Contradiction)):
        books.write(record)


# -- messages -------------------------------------------------------------------------------------------------------


def fold_all(stored: list[bytes]) -> State:
    state = State()
    for data in stored:
        fold_message(state, LEDGER_MESSAGE.validate_json(data), data)
    return state


def test_messages_that_continue_each_other_are_folded() -> None:
    chain = Chain()
    chain.add()
    chain.add()
    state = fold_all(chain.stored)
    assert (state.n, state.chain, state.epoch) == (2, chain.prev, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n": 4}, "ledger gap: record 4 after 2"),
        ({"n": 2}, "ledger gap: record 2 after 2"),
        ({"prev": "f" * 64}, "ledger fork at 3"),
        ({"epoch": 1}, "epoch 1 after 2"),
        ({"ts": 1}, "goes back"),
        ({"facts_upto": 0}, "goes back"),
    ],
    ids=["a gap", "a repeat", "a fork", "an older epoch", "time goes back", "facts go back"],
)
def test_a_message_that_does_not_continue_the_ledger_is_refused(changes: dict[str, object], said: str) -> None:
    chain = Chain()
    chain.add(facts=(admitted("k9"),))
    chain.add(opens=True)
    chain.add(**changes)  # type: ignore[arg-type]
    with pytest.raises(Contradiction, match=said):
        fold_all(chain.stored)


def test_an_order_becomes_the_line_of_its_pool() -> None:
    state = State()
    order = Order(v=1, pool="default", basis_n=0, ts=5, engine="e", policy=0, jobs=(JOB,))
    take_in(state, 1, 10, 0, (order,))
    line = state.lines.get("default")
    assert line is not None
    assert (line.basis_n, line.ts, line.jobs) == (0, 5, (JOB,))
