"""Test jobs of suspected nodes among whatever else happens: no rule is broken, and a replay finds the same."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.testkit.checker import check
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy, ReputationPolicy
from tessera_schemas.config import ConfigBody, Queue
from tessera_schemas.facts import (
    AnyFact,
    CancelRequested,
    DrainRequested,
    HealthReported,
    HoldRequested,
    MoveRequested,
    PriorityRequested,
    RequeueRequested,
)
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed, node_seen, run_absent
from tests.unit.scheduler.committer_world import World, ended, made, started
from tests.unit.scheduler.suspected_nodes import body_with_test, due, whole_node

NODES = ("node-a", "node-b", "node-c")
ENDS = (Code.POD_FAILED, Code.NODE_LOST, Code.IMAGE_NOT_FOUND, Code.POD_EVICTED, Code.TIME_LIMIT, None, None)
WORDS: tuple[tuple[type[AnyFact], dict[str, Any]], ...] = (
    (CancelRequested, {"kind": "cancel_requested"}),
    (HoldRequested, {"kind": "hold_requested"}),
    (HoldRequested, {"kind": "hold_requested", "undo": True}),
    (MoveRequested, {"kind": "move_requested", "queue": "other"}),
    (PriorityRequested, {"kind": "priority_requested", "priority_class": "high"}),
    (RequeueRequested, {"kind": "requeue_requested"}),
)
"""Words of operators about a test job."""
QUEUES = (Queue(name="research"), Queue(name="other", pool="elsewhere"))
TESTED = body_with_test(again_seconds=60).health
UNTESTED = HealthPolicy(reputation=ReputationPolicy())


def body(health: HealthPolicy | None) -> ConfigBody:
    wide = None if health is None else health.model_copy(update={"out_percent": 100})
    return config_body(*QUEUES, health=wide)


class Happenings:
    """A ledger in which one thing happens after the other, each drawn as two numbers."""

    def __init__(self) -> None:
        self.world = World(*map(node_seen, NODES), body=body(TESTED))
        self.keys = 0

    def happen(self, what: int, which: int) -> None:
        """One thing, on one of several nodes or in one of several ways."""
        steps = (self._suspect, self._well, self._test, self._end, self._say, self._drain, self._lose, self._wait)
        (*steps, self._submit, self._configure, self._start)[what % 11](which)

    def _suspect(self, which: int) -> None:
        self._report(which, (Ailment(cause=HealthCause.SUSPECTED),))

    def _well(self, which: int) -> None:
        self._report(which, ())

    def _report(self, which: int, said: tuple[Ailment, ...]) -> None:
        node = NODES[which % 3]
        self.world.commit(HealthReported(kind="health_reported", node=node, source="agent", ailments=said))

    def _test(self, which: int) -> None:
        found = due(self.world)
        self.world.commit(*found, *found[: which % 2])

    def _start(self, which: int) -> None:
        runs = [run.run_id for run in self.world.state.runs.values() if not (run.uids or run.stopping)]
        self.world.commit(*(fact for run in sorted(runs) for fact in (made(run), started(run))))

    def _end(self, which: int) -> None:
        runs = sorted(run.run_id for run in self.world.state.runs.values() if run.started and not run.stopping)
        if runs:
            run, code = runs[which % len(runs)], ENDS[which % len(ENDS)]
            self.world.commit(ended(run, None if code is None else Reason(code=code)))
        gone = sorted(run.run_id for run in self.world.state.runs.values() if run.stopping)
        self.world.commit(*map(run_absent, gone))

    def _say(self, which: int) -> None:
        rows = sorted(row.job_id for row in self.world.state.node_tests.values() if row.is_alive)
        if rows:
            kind, said = WORDS[which % len(WORDS)]
            self.world.commit(kind.model_validate({"job_id": rows[which % len(rows)], **said}))

    def _drain(self, which: int) -> None:
        node, undo = NODES[which % 3], which % 2 == 1
        self.world.commit(DrainRequested(kind="drain_requested", node=node, undo=undo, evict=which % 5 == 0))

    def _lose(self, which: int) -> None:
        self.world.commit(node_seen(NODES[which % 3], gone=which % 2 == 0))

    def _wait(self, which: int) -> None:
        # Deadlines of runs are judged at each message, and no committer leaves an hour without one.
        self.world.commit(ms=(1_000, 30_000 if len(self.world.state.runs) else 3_600_000)[which % 2])

    def _submit(self, which: int) -> None:
        self.keys += 1
        spec = whole_node(f"user-{which}", preemptible=True, time_limit_seconds=600)
        self.world.commit(admitted(f"key-{self.keys}", spec))
        self.world.place()

    def _configure(self, which: int) -> None:
        health = (TESTED, UNTESTED, body_with_test(again_seconds=61 + which).health)[which % 3]
        self.world.commit(config_proposed(body(health), self.world.state.config.version))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 29)), max_size=40))
def test_tests_of_nodes_break_no_rule_whatever_happens_and_a_replay_finds_the_same(
    things: Sequence[tuple[int, int]],
) -> None:
    here = Happenings()
    for what, which in ((0, 0), (2, 0), (10, 0), *things):
        here.happen(what, which)
    stored, state = here.world.stored, here.world.state
    assert verify(stored).findings == []
    report = check(stored)
    check_rules(report, stored)
    assert isinstance(report, Report)
    assert report.violations == []
    assert StateHash().of(load(dump(state))) == StateHash().of(state)
    for row in state.node_tests.values():
        assert row.is_alive is (state.jobs.get(row.job_id) is not None)
