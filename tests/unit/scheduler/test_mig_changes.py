"""Idle nodes are cut anew by NVIDIA's mig-manager for jobs that wait for instances, one at a time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tessera.client.ledger.replay import verify
from tessera.engine.defragmentation.mig_changes import count_troubled, next_change
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.rules_checker.backoff_rules import BackoffRules
from tessera.testkit.rules_checker.rules import Rules
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera_schemas.cluster.pools import MigChanges, MigConfig, Pool
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.ledger import LEDGER_MESSAGE, MigChangeBegun, MigChangeEnded, PlanRefused
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.rounds import Rounds

SMALL, LARGE, MIXED = "all-1g.10gb", "all-3g.40gb", "all-balanced"
GIVES = {SMALL: {"1g.10gb": 7}, LARGE: {"3g.40gb": 2}, MIXED: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}}
CONFIGS = tuple(MigConfig(name=name, gives=gives) for name, gives in GIVES.items())
CHANGE_MS, INTERVAL_MS = 60_000, 600_000


def cut(name: str, config: str, gpus: int = 2, state: str = "success", asked: str = "", **more: Any) -> NodeSeen:
    """A node of so many GPUs that are cut to `config`; its label asks for that, or for `asked`."""
    labels = {MIG_CONFIG_LABEL: asked or config, MIG_CONFIG_STATE_LABEL: state}
    made = {profile: count * gpus for profile, count in GIVES[config].items()}
    mig = {"device_profile": "mig", "mig_geometry": "80gb", "mig_instances": made}
    return node_seen(name, gpus=gpus, labels={k: v for k, v in labels.items() if v}, **mig, **more)


class Cut(Rounds):
    """A pool whose nodes may be changed, without anybody who proposes on its own."""

    def __init__(self, *nodes: NodeSeen, **changes: Any) -> None:
        super().__init__(nodes=[])
        fields = {"change_seconds": CHANGE_MS // 1000, "interval_seconds": INTERVAL_MS // 1000, **changes}
        self.allow(MigChanges(configs=CONFIGS, **fields))
        self.commit(*nodes)

    def allow(self, changes: MigChanges | None, *queues: Queue) -> None:
        pool = Pool(name="default", device_profile="mig", mig_changes=changes)
        self.commit(config_proposed(config_body(*queues, pools=(pool,)), self.state.config.version))

    def ask(self, key: str, profile: str, pods: int = 1) -> None:
        self.commit(admitted(key, job_spec(role(gpus=0, replicas=pods, mig_profile=profile), name=key)))
        self.look(1)

    def look(self, ms: int = 1000) -> None:
        """Let so much time go by, and the committer look at the line."""
        self.commit(orders=[self.line("default")], ms=ms)
        self.commit(orders=[self.line("default")], ms=1)

    def change(self) -> list[Any]:
        """Changes that begin now."""
        proposed = next_change(self.state, "default", self.ts)
        return [] if proposed is None else [r for r in self.commit(proposed).records if isinstance(r, MigChangeBegun)]

    def seen(self, *nodes: NodeSeen) -> list[Any]:
        return [r for r in self.commit(*nodes).records if isinstance(r, MigChangeEnded)]

    def begun(self, *keys: tuple[str, str]) -> MigChangeBegun:
        for key, profile in keys:
            self.ask(key, profile)
        self.look(CHANGE_MS)
        (record,) = self.change()
        assert isinstance(record, MigChangeBegun)
        return record


def check_all(shard: Rounds) -> None:
    report = Report()
    check_rules(report, shard.stored)
    assert not report.violations


def test_an_idle_node_is_cut_for_a_job_that_has_waited_for_as_long_as_a_change_takes() -> None:
    shard = Cut(cut("n1", LARGE))
    shard.ask("small", "1g.10gb")
    assert shard.change() == [], "it has only just come"
    shard.look(CHANGE_MS)
    (begun,) = shard.change()
    assert (begun.node, begun.config, begun.before, begun.gpus) == ("n1", MIXED, LARGE, 2)
    node = shard.state.nodes.get("n1")
    assert not node.ready
    assert node.trouble.code is Code.GPUS_BEING_CUT
    told = explain(shard.state, shard.job("small").job_id, shard.ts)
    assert told is not None
    assert f"Node n1 is being cut to {MIXED} for it." in told.sentences


def test_a_spare_is_cut_for_nobody() -> None:
    shard = Cut(cut("n1", LARGE), cut("n2", LARGE))
    shard.ask("small", "1g.10gb")
    shard.look(CHANGE_MS)
    proposed = next_change(shard.state, "default", shard.ts)
    assert proposed is not None
    assert proposed.node == "n1"
    changes = MigChanges(configs=CONFIGS, change_seconds=CHANGE_MS // 1000, interval_seconds=INTERVAL_MS // 1000)
    pool = Pool(name="default", device_profile="mig", mig_changes=changes, spare_nodes=1)
    shard.commit(config_proposed(config_body(pools=(pool,)), shard.state.config.version))
    refused = [r.reason.detail for r in shard.commit(proposed).records if isinstance(r, PlanRefused)]
    assert refused == [f"not cut to {proposed.config}: the node is in use, or as it should be"]
    other = next_change(shard.state, "default", shard.ts)
    assert other is not None
    assert other.node == "n2"


def test_the_node_stays_closed_until_the_mig_manager_says_success_and_the_instances_are_there() -> None:
    shard = Cut(cut("n1", LARGE))
    begun = shard.begun(("small", "1g.10gb"))
    for step in (
        cut("n1", LARGE),
        cut("n1", LARGE, asked=begun.config, state=""),
        cut("n1", LARGE, asked=begun.config, state="pending"),
        cut("n1", LARGE, asked=begun.config, state="success"),
    ):
        assert shard.seen(step) == []
        shard.look()
        assert not shard.state.nodes.get("n1").ready
        assert shard.run("small") is None
    (ended,) = shard.seen(cut("n1", begun.config))
    assert (ended.outcome, ended.times) == ("done", 0)
    shard.look()
    assert shard.run("small").places[0].node == "n1"
    check_all(shard)


def test_a_change_that_fails_is_taken_back_and_tried_again_later_each_time() -> None:
    shard = Cut(cut("n1", LARGE), interval_seconds=1)
    shard.ask("small", "1g.10gb")
    shard.look(CHANGE_MS)
    for times, minutes in ((1, 5), (2, 10), (3, 20)):
        (begun,) = shard.change()
        (failed,) = shard.seen(cut("n1", LARGE, asked=begun.config, state="failed"))
        assert (failed.outcome, failed.times, failed.undo) == ("failed", times, True)
        assert failed.until_ts - shard.ts == minutes * 60_000
        assert not shard.state.nodes.get("n1").ready, "it is cut back first"
        assert shard.state.mig_changes.get("n1").config == LARGE
        (undone,) = shard.seen(cut("n1", LARGE))
        assert undone.outcome == "undone"
        assert shard.state.nodes.get("n1").ready
        shard.look(minutes * 60_000 - 10_000)
        assert shard.change() == [], "not before its time"
        shard.look(10_000)


def test_no_node_is_changed_back_while_jobs_wait_for_what_it_gives() -> None:
    shard = Cut(cut("n1", LARGE, cpu_milli=500))
    shard.ask("large", "3g.40gb")
    shard.ask("small", "1g.10gb")
    shard.look(CHANGE_MS)
    assert shard.change() == []


@pytest.mark.parametrize(
    "node",
    [
        cut("n1", LARGE, others=Others(devices={"nvidia.com/mig-3g.40gb": 1})),
        cut("n1", LARGE, ready=False),
        cut("n1", LARGE, state="failed"),
        cut("n1", LARGE, asked="by-hand"),
        cut("n1", LARGE, asked=SMALL),
    ],
    ids=["others have an instance", "not ready", "failed", "a configuration that is not listed", "other instances"],
)
def test_nodes_that_are_in_use_or_not_understood_are_left_alone(node: NodeSeen) -> None:
    shard = Cut(node)
    shard.ask("small", "1g.10gb")
    shard.look(CHANGE_MS)
    assert shard.change() == []


def test_the_node_with_the_least_loss_is_cut_and_no_more_at_once_than_allowed() -> None:
    shard = Cut(cut("n1", LARGE, gpus=4), cut("n2", LARGE, gpus=2), cut("n3", LARGE, gpus=3))
    assert shard.begun(("one", "1g.10gb"), ("two", "2g.20gb")).node == "n2"
    assert shard.change() == [], "one node of the pool at a time"


def test_a_configuration_that_no_longer_has_the_change_gives_it_up() -> None:
    shard = Cut(cut("n1", LARGE))
    shard.begun(("small", "1g.10gb"))
    shard.allow(None)
    shard.look()
    assert shard.state.mig_changes.get("n1").ended_ts
    shard.commit(cut("n1", LARGE))
    assert shard.state.nodes.get("n1").ready


@given(st.lists(st.tuples(st.sampled_from(sorted(GIVES)), st.integers(1, 4)), min_size=1, max_size=5), st.data())
def test_no_node_with_runs_is_ever_cut_and_never_more_than_allowed(
    nodes: list[tuple[str, int]], data: st.DataObject
) -> None:
    at_once = data.draw(st.integers(1, 3))
    shard = Cut(*(cut(f"n{at}", config, gpus) for at, (config, gpus) in enumerate(nodes)), nodes_at_once=at_once)
    for at in range(data.draw(st.integers(1, 6))):
        shard.ask(f"j{at}", data.draw(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"])), data.draw(st.integers(1, 9)))
    shard.look(CHANGE_MS)
    for _ in range(4):
        busy = {place.node for run in shard.state.runs.values() for place in run.places}
        for record in shard.change():
            assert record.node not in busy
        assert sum(not change.ended_ts for change in shard.state.mig_changes.values()) <= at_once
        shard.look()
    check_all(shard)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"device_profile": None}, "needs device_profile: mig"),
        ({"gives": {"3g.40gb": 3}}, "no known kind of GPU"),
        ({"gives": {"1g.5gb": 1, "1g.10gb": 1, "3g.40gb": 1}}, "no known kind of GPU"),
        ({"name": LARGE}, "is there twice"),
    ],
)
def test_what_no_node_could_be_cut_to_is_refused(fields: dict[str, Any], wrong: str) -> None:
    config = {"name": SMALL, "gives": GIVES[SMALL]} | {k: v for k, v in fields.items() if k != "device_profile"}
    configs = [config, {"name": LARGE, "gives": GIVES[LARGE]}]
    profile = fields.get("device_profile", "mig")
    with pytest.raises(ValidationError, match=wrong):
        Pool.model_validate({"name": "p", "device_profile": profile, "mig_changes": {"configs": configs}})


def test_changes_that_take_too_long_and_nodes_left_alone_for_failed_ones_are_counted() -> None:
    shard = Cut(cut("n1", LARGE))

    def counted(ms: int = 0) -> tuple[int, int]:
        return count_troubled(shard.state, "default", shard.ts + ms)

    shard.begun(("small", "1g.10gb"))
    begun = shard.state.mig_changes.get("n1").since_ts - shard.ts
    assert counted(begun + 2 * CHANGE_MS) == (0, 0)
    assert counted(begun + 2 * CHANGE_MS + 1) == (1, 0)
    shard.seen(cut("n1", LARGE, asked=MIXED, state="failed"))
    assert counted() == (0, 1)
    shard.seen(cut("n1", LARGE))
    rests = shard.state.mig_changes.get("n1").until_ts - shard.ts
    assert counted(rests - 1) == (0, 1)
    assert counted(rests) == (0, 0), "it may be changed again"
    shard.allow(None)
    assert counted() == (0, 0)


def test_replay_proposes_the_same_change_from_the_same_state() -> None:
    shard = Cut(cut("n1", LARGE), cut("n2", LARGE))
    shard.begun(("small", "1g.10gb"))
    report = verify(shard.stored)
    assert (report.findings, report.plans, report.plans_not_recomputed) == ([], 1, 0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"node": "n2"}, "is not the one that follows"),
        ({"config": SMALL}, "is not the one that follows"),
        ({"policy": 9}, "cannot have seen"),
        ({"basis_n": 10**6}, "never reached"),
    ],
)
def test_replay_finds_a_change_that_does_not_follow_though_the_committer_let_it_begin(
    other: dict[str, Any], words: str
) -> None:
    shard = Cut(cut("n1", LARGE), cut("n2", LARGE))
    shard.ask("small", "1g.10gb")
    shard.look(CHANGE_MS)
    proposed = next_change(shard.state, "default", shard.ts)
    assert proposed is not None
    (begun,) = shard.commit(proposed.model_copy(update=other)).records
    assert isinstance(begun, MigChangeBegun)
    (found,) = verify(shard.stored).findings
    assert words in found


def test_the_checker_is_sure_of_no_gpus_of_a_node_being_cut_where_a_quota_is_a_part_of_its_pool() -> None:
    shard = Cut(cut("n1", LARGE))
    whole = Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=0, part_percent=100),))
    allowed = MigChanges(configs=CONFIGS, change_seconds=CHANGE_MS // 1000)
    shard.allow(allowed, whole)

    def has_a_gpu() -> bool:
        rules = Rules(Report())
        backoffs = BackoffRules(Report(), rules.quotas.cut)
        for message in map(LEDGER_MESSAGE.validate_json, shard.stored):
            rules.take(message)
            backoffs.take(message)
        return rules.quotas.has_left(whole, "", {"gpu_milli": 1000})

    assert has_a_gpu()
    shard.begun(("small", "1g.10gb"))
    assert not has_a_gpu()
    shard.seen(cut("n1", LARGE, asked=MIXED, state="pending"))
    assert not has_a_gpu(), "the mig-manager does not answer for hours, and the node seems well"
    shard.allow(None, whole)
    assert not has_a_gpu(), "given up: it opens with the next that is seen of it"
    shard.seen(cut("n1", LARGE))
    assert has_a_gpu()
