"""Nodes that are kept out for their health: what sources say, what is done about it, and how an operator overrules."""

from typing import Any

import pytest

from tessera.domain.state import State
from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.health import ACTIONS, MEANINGS, Ailment, HealthAction, HealthCause, HealthPolicy
from tessera_schemas.facts import ConfigProposed, DrainRequested, HealthReported, HealthSeen
from tessera_schemas.ledger import HealthNoted, LedgerMessage, NodeDrained, Revoked
from tessera_schemas.reasons import Code
from tests.builders import config_body, node_seen, run_absent
from tests.unit.scheduler.committer_world import World, kinds

LOST = Ailment(cause=HealthCause.GPU_LOST, device="GPU-1", evidence="XID 79")
SHUTS = (HealthAction.DRAIN, HealthAction.EVICT, HealthAction.FENCE)
WARM = Ailment(cause=HealthCause.GPU_THROTTLED)
LINKS = Ailment(cause=HealthCause.LINK_ERRORS)


def world(nodes: int = 4, **policy: Any) -> World:
    body = config_body(health=HealthPolicy(**policy), fencing=Fencing(url="https://power.example/fence"))
    return World(*(node_seen(f"node-{at}") for at in range(nodes)), body=body)


def seen(node: str, *ailments: Ailment, source: str = "dcgm") -> HealthSeen:
    return HealthSeen(kind="health_seen", node=node, source=source, ailments=ailments)


def drain(node: str, undo: bool = False, evict: bool = False) -> DrainRequested:
    return DrainRequested(kind="drain_requested", node=node, undo=undo, evict=evict, why="new fans")


def closed(state: State) -> list[str]:
    return sorted(name for name, _ in state.drains.items())


def noted(message: LedgerMessage) -> list[HealthNoted]:
    return [record for record in message.records if isinstance(record, HealthNoted)]


@pytest.mark.parametrize("cause", HealthCause)
def test_each_cause_has_its_usual_action(cause: HealthCause) -> None:
    here = world()
    here.commit(seen("node-1", Ailment(cause=cause)))
    action = MEANINGS[cause][1]
    assert closed(here.state) == (["node-1"] if action in (HealthAction.DRAIN, HealthAction.EVICT) else [])
    assert here.state.health.get("node-1") is not None


@pytest.mark.parametrize("action", ACTIONS)
def test_the_configuration_says_what_is_done(action: HealthAction) -> None:
    here = world(actions={HealthCause.GPU_LOST: action})
    here.commit(seen("node-1", LOST))
    assert closed(here.state) == (["node-1"] if action in SHUTS else [])
    assert (here.state.health.get("node-1") is None) is (action is HealthAction.IGNORE)


def test_without_health_in_the_configuration_nothing_is_taken_in() -> None:
    here = World(node_seen())
    assert here.say(seen(node_seen().name, LOST)) == []


@pytest.mark.parametrize("action", [HealthAction.EVICT, HealthAction.FENCE])
def test_what_runs_on_a_node_to_be_emptied_restarts_elsewhere_and_spends_no_attempt(action: HealthAction) -> None:
    here = world(2, actions={HealthCause.GPU_LOST: action}).running()
    node, run = here.run.placements[0].node, here.run.run_id
    message = here.commit(seen(node, LOST))
    assert kinds(message) == ["health_noted", "node_drained", "revoked"]
    (stop,) = [record for record in message.records if isinstance(record, Revoked)]
    assert (stop.reason.code, stop.by, stop.avoid, stop.then) == (Code.NODE_SICK, "health", (node,), "requeue")
    assert "XID 79" in stop.reason.detail
    here.commit(run_absent(run))
    here.place()
    assert here.run.placements[0].node != node
    assert here.job.strikes == 0


def test_what_runs_on_a_node_to_be_drained_goes_on() -> None:
    here = world(2).running()
    node = here.run.placements[0].node
    assert here.say(seen(node, LINKS)) == ["health_noted", "node_drained"]
    assert here.run.revoked is None


def test_saying_the_same_again_records_nothing() -> None:
    here = world()
    here.commit(seen("node-1", LOST, WARM))
    assert here.say(seen("node-1", LOST, WARM)) == []
    assert here.say(seen("node-1", LOST)) == ["health_noted"]


def test_each_source_speaks_for_itself_and_the_node_opens_once_all_are_content() -> None:
    here = world()
    here.commit(seen("node-1", LOST), seen("node-1", LINKS, source="agent"))
    assert here.say(seen("node-1")) == ["health_noted"]
    assert closed(here.state) == ["node-1"]
    assert here.say(seen("node-1", source="agent")) == ["health_noted", "node_drained"]
    assert closed(here.state) == []
    assert here.state.health.get("node-1") is None


def test_at_most_a_part_of_a_pool_is_out_and_the_others_are_told_as_held_back() -> None:
    here = world(20, out_percent=10)
    message = here.commit(*(seen(f"node-{at}", LOST) for at in range(20)))
    assert len(closed(here.state)) == 2
    assert sum(record.held_back for record in noted(message)) == 18
    assert here.say(*(seen(f"node-{at}", LOST) for at in range(20))) == []


def test_who_was_held_back_is_out_as_soon_as_another_one_is_well() -> None:
    here = world(4)
    here.commit(seen("node-0", LOST))
    here.commit(seen("node-1", LOST))
    here.commit(seen("node-2", LOST))
    assert closed(here.state) == ["node-0"]
    here.commit(seen("node-0"))
    assert closed(here.state) == ["node-1"]


def test_a_node_that_flaps_takes_turns_with_nobody_else() -> None:
    here = world(4)
    for _ in range(10):
        here.commit(seen("node-0", LOST))
        assert closed(here.state) == ["node-0"]
        here.commit(seen("node-0"))
        assert closed(here.state) == []


def test_an_operator_overrules_until_the_node_was_well_once() -> None:
    here = world()
    here.commit(seen("node-1", LOST))
    assert here.say(drain("node-1", undo=True)) == ["health_noted", "node_drained"]
    assert closed(here.state) == []
    here.commit(seen("node-1", LOST, LINKS))
    assert closed(here.state) == []
    here.commit(seen("node-1"))
    here.commit(seen("node-1", LOST))
    assert closed(here.state) == ["node-1"]


def test_an_operators_drain_outlasts_the_ailment() -> None:
    here = world()
    here.commit(seen("node-1", LOST))
    assert here.say(drain("node-1")) == ["node_drained"]
    here.commit(seen("node-1"))
    assert closed(here.state) == ["node-1"]
    here.commit(drain("node-1", undo=True))
    assert closed(here.state) == []


def test_a_node_that_an_operator_drained_stays_his_while_it_is_sick() -> None:
    here = world()
    here.commit(drain("node-1"))
    here.commit(seen("node-1", LOST))
    here.commit(seen("node-1"))
    assert closed(here.state) == ["node-1"]


def test_a_run_may_go_on_whose_node_is_well_again_before_it_has_stopped() -> None:
    here = world(1).running()
    node = here.run.placements[0].node
    here.commit(seen(node, LOST))
    assert here.run.revoked is not None
    here.commit(seen(node))
    assert closed(here.state) == []


def test_a_configuration_without_health_opens_what_it_had_closed() -> None:
    here = world()
    here.commit(seen("node-1", LOST))
    version = here.state.config.version
    here.commit(ConfigProposed(kind="config_proposed", expected_version=version, body=config_body()))
    assert closed(here.state) == []
    assert not len(here.state.health)


def test_another_configuration_acts_on_what_is_known() -> None:
    here = world(actions={HealthCause.LINK_ERRORS: HealthAction.NOTE}).running()
    node = here.run.placements[0].node
    here.commit(seen(node, LINKS))
    body = config_body(health=HealthPolicy(actions={HealthCause.LINK_ERRORS: HealthAction.EVICT}))
    message = here.commit(ConfigProposed(kind="config_proposed", expected_version=here.state.config.version, body=body))
    assert kinds(message) == ["config_set", "node_drained", "revoked"]


def test_a_node_that_is_gone_is_forgotten() -> None:
    here = world()
    here.commit(seen("node-1", LOST))
    here.commit(node_seen("node-1").model_copy(update={"gone": True}))
    assert closed(here.state) == []
    assert here.state.health.get("node-1") is None


def test_agents_and_operators_report_by_the_same_words() -> None:
    here = world()
    told = HealthReported(kind="health_reported", node="node-1", source="agent", ailments=(LINKS,), by="ana")
    (drained,) = [record for record in here.commit(told).records if isinstance(record, NodeDrained)]
    assert (drained.by, drained.why) == ("health", "link_errors (agent)")
