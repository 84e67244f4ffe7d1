"""Topology levels by short names: settled when a job is taken in, refused by field where nobody configured them."""

import pytest
from pydantic import ValidationError

from tessera.domain.devices.levels import in_short, unknown_levels, with_labels
from tessera.domain.devices.resources import role_need
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import Role, Topology
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.rounds import Rounds

ZONE, RACK = "topology.kubernetes.io/zone", "example.org/rack"
LEVELS = {"zone": ZONE, "rack": RACK}


def named(**labels: str) -> ConfigBody:
    return config_body(topology=[{"name": name, "label": label} for name, label in labels.items()])


def lying(level: str, *wider: str, spread: str | None = None) -> Role:
    return role(topology=Topology(level=level, wider=wider), spread=spread)


def test_names_become_labels_and_labels_stay_what_they_are() -> None:
    (need,) = with_labels([role_need(lying("rack", "example.org/row", "zone", spread="zone"))], LEVELS)
    assert (need.levels, need.spread) == ((RACK, "example.org/row", ZONE), ZONE)


def test_without_configured_names_every_word_is_a_label() -> None:
    (need,) = with_labels([role_need(lying("rack", spread="zone"))], {})
    assert (need.levels, need.spread) == (("rack",), "zone")
    assert unknown_levels(job_spec(lying("rack", spread="zone")), {}) == []


def test_each_name_that_is_not_there_is_refused_by_its_field() -> None:
    group = RoleGroup(name="pair", pods={"a": 1}, topology=Topology(level="hst"))
    against = unknown_levels(job_spec(role("a"), lying("rak", "zone", "row", spread="zon"), groups=(group,)), LEVELS)
    assert {reason.code for reason in against} == {Code.NO_SUCH_TOPOLOGY_LEVEL}
    assert [(reason.field, reason.detail) for reason in against] == [
        ("roles[1].topology.level", "rak; there are zone, rack"),
        ("roles[1].topology.wider", "row; there are zone, rack"),
        ("roles[1].spread", "zon; there are zone, rack"),
        ("groups[0].topology.level", "hst; there are zone, rack"),
    ]


def test_a_reason_says_the_short_name() -> None:
    reason = Reason(code=Code.NO_FIT, detail=f"{RACK}: no domain holds its pods")
    assert in_short(reason, LEVELS).detail == "rack: no domain holds its pods"
    other = Reason(code=Code.NO_FIT, detail="example.org/row: no domain holds its pods")
    assert in_short(other, LEVELS) == other


WRONG = {
    "a name twice": [{"name": "rack", "label": "a"}, {"name": "rack", "label": "b"}],
    "a label twice": [{"name": "rack", "label": "a"}, {"name": "row", "label": "a"}],
    "the name of what every node is": [{"name": "node", "label": "kubernetes.io/hostname"}],
    "the name of what every pool is": [{"name": "pool", "label": "a"}],
    "five levels": [{"name": f"l{n}", "label": f"l{n}"} for n in range(5)],
}


@pytest.mark.parametrize("levels", WRONG.values(), ids=WRONG)
def test_a_configuration_of_levels_that_contradicts_itself_is_refused(levels: list[dict[str, str]]) -> None:
    with pytest.raises(ValidationError, match="topology"):
        config_body(topology=levels)


# -- from submit to placement ------------------------------------------------------------------------------------------


def shard() -> Rounds:
    rounds = Rounds(nodes=[node_seen(f"node-{n}", 8, labels={RACK: f"r{n // 2}"}) for n in range(4)])
    configure(rounds, named(zone=ZONE, rack=RACK))
    return rounds


def configure(rounds: Rounds, body: ConfigBody) -> None:
    rounds.commit(config_proposed(body, rounds.state.config.version))


def test_a_gang_goes_to_one_domain_of_the_level_that_it_names() -> None:
    rounds = shard()
    rounds.submit("gang", gpus=8, pods=2, topology=Topology(level="rack"))
    rounds.settle()
    assert {place.node for place in rounds.run("gang").placements} in ({"node-0", "node-1"}, {"node-2", "node-3"})


def test_why_it_waits_says_the_name_and_not_the_label() -> None:
    rounds = shard()
    rounds.submit("first", gpus=1)
    rounds.settle()
    rounds.submit("gang", gpus=8, pods=3, topology=Topology(level="rack"))
    rounds.settle()
    reason = rounds.job("gang").reason
    assert reason is not None
    assert reason.detail == "rack: no domain holds its pods"


def test_a_later_configuration_changes_nothing_for_jobs_that_were_taken_in() -> None:
    rounds = shard()
    rounds.submit("gang", gpus=8, pods=3, topology=Topology(level="rack"))
    configure(rounds, named(rack="example.org/other"))
    assert rounds.job("gang").roles[0].levels == (RACK,)


def test_a_name_that_is_gone_by_the_time_the_job_is_taken_in_is_a_refusal() -> None:
    rounds = shard()
    configure(rounds, named(zone=ZONE))
    fact = admitted("late", job_spec(lying("rack")))
    message = rounds.commit(fact)
    (turned,) = [record for record in message.records if record.kind == "job_turned_away"]
    assert [(reason.code, reason.field) for reason in turned.reasons] == [
        (Code.NO_SUCH_TOPOLOGY_LEVEL, "roles[0].topology.level")
    ]
    assert rounds.state.jobs.get(fact.job_id) is None
