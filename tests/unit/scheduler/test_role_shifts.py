"""Pods that move between the elastic roles of a run by its own request, by the real committer, and judged."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.facts import RunAbsent
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, Grown, JobTurnedAway, Released
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import RolesRequested, RolesShifted
from tests.builders import SHARD
from tests.rounds import Rounds
from tests.unit.scheduler.role_jobs import make, named, rl_job, settle

RL = job_id(SHARD, "lab", "rl")


def sizes(rounds: Rounds) -> dict[str, int]:
    run = rounds.run("rl")
    leaving = {extra.placement.rank for extra in run.extra if extra.leaving}
    found: dict[str, int] = {}
    for place in run.places:
        found[place.role] = found.get(place.role, 0) + (place.rank not in leaving)
    return found


def ask(rounds: Rounds, key: str = "one", have: dict[str, int] | None = None, **steps: int) -> list[Any]:
    fact = RolesRequested(kind="roles_requested", job_id=RL, roles=steps, key=key, have=have or {}, tenant="lab")
    return list(rounds.commit(fact).records)


def absent(rounds: Rounds) -> list[Any]:
    """All pods that are to leave are gone."""
    run = rounds.run("rl")
    ranks = tuple(extra.placement.rank for extra in run.extra if extra.leaving)
    return list(rounds.commit(RunAbsent(kind="run_absent", run_id=run.run_id, ranks=ranks)).records)


def refusals(records: list[Any]) -> list[tuple[Code, str]]:
    return [(why.code, why.field) for r in records if isinstance(r, JobTurnedAway) for why in r.reasons]


@pytest.fixture
def judged() -> Any:
    made: list[Rounds] = []
    yield made.append
    for rounds in made:
        report = check(rounds.stored)
        check_rules(report, rounds.stored)
        assert report.violations == []
        assert StateHash().of(load(dump(rounds.state))) == rounds.shard.hasher.of(rounds.state)


def test_pods_of_one_role_leave_and_those_of_the_other_start_where_they_were(judged: Any) -> None:
    rounds = rl_job()
    judged(rounds)
    before = sizes(rounds)
    assert sum(before.values()) == 8
    waits = rounds.submit("waits", gpus=1)
    (shifted, *_) = ask(rounds, trainer=-2, rollout=2)
    assert isinstance(shifted, RolesShifted)
    assert (len(shifted.ranks), shifted.gains) == (2, {"rollout": 2})
    assert rounds.state.nodes.get("node-a").gpu_free == (0,) * 8
    records = absent(rounds)
    assert [type(record) for record in records[:2]] == [Released, Grown]
    assert not [r for r in records if isinstance(r, Allocated)]
    assert sizes(rounds) == {"trainer": before["trainer"] - 2, "rollout": before["rollout"] + 2}
    assert rounds.state.jobs.get(waits).phase == "queued"
    make(rounds)
    assert rounds.run("rl").amount.gpu_milli == 8000


def test_what_is_released_one_by_one_comes_only_with_the_last(judged: Any) -> None:
    rounds = rl_job()
    judged(rounds)
    (shifted, *_) = ask(rounds, trainer=-2, rollout=2)
    first, last = shifted.ranks
    run = rounds.run("rl").run_id
    told = rounds.commit(RunAbsent(kind="run_absent", run_id=run, ranks=(first,))).records
    assert not any(isinstance(record, Grown) and record.placements[0].role == "rollout" for record in told[:2])
    records = rounds.commit(RunAbsent(kind="run_absent", run_id=run, ranks=(last,))).records
    assert isinstance(records[1], Grown)


def test_a_role_that_gave_pods_up_does_not_grow_back_by_itself(judged: Any) -> None:
    rounds = rl_job(named("trainer", 1, 4), named("rollout", 1, 2))
    judged(rounds)
    assert sizes(rounds) == {"trainer": 4, "rollout": 2}
    ask(rounds, trainer=-2)
    settle(rounds)
    assert sizes(rounds) == {"trainer": 2, "rollout": 2}
    ask(rounds, key="two", trainer=1)
    settle(rounds)
    assert sizes(rounds)["trainer"] == 4


def test_a_request_is_carried_out_once(judged: Any) -> None:
    rounds = rl_job()
    judged(rounds)
    before = sizes(rounds)
    assert ask(rounds, trainer=-1, rollout=1)
    assert ask(rounds, trainer=-1, rollout=1) == []
    settle(rounds)
    assert ask(rounds, trainer=-1, rollout=1) == []
    assert sizes(rounds) == {"trainer": before["trainer"] - 1, "rollout": before["rollout"] + 1}


def test_what_cannot_be_is_refused_by_name(judged: Any) -> None:
    rounds = rl_job(named("trainer", 2, 6), named("rollout", 1, 3), named("judge", 1, None))
    judged(rounds)
    now = sizes(rounds)
    assert refusals(ask(rounds, judge=-1, trainer=-1)) == [(Code.NOT_ELASTIC, "roles.judge")]
    assert refusals(ask(rounds, nobody=1)) == [(Code.INVALID_FIELD, "roles.nobody")]
    assert refusals(ask(rounds, trainer=-5)) == [(Code.OUTSIDE_ROLE_BOUNDS, "roles.trainer")]
    assert refusals(ask(rounds, rollout=9)) == [(Code.OUTSIDE_ROLE_BOUNDS, "roles.rollout")]
    stale = {"trainer": now["trainer"] + 1}
    assert refusals(ask(rounds, trainer=-1, have=stale)) == [(Code.ROLE_COUNT_STALE, "have.trainer")]
    ask(rounds, trainer=-1)
    assert refusals(ask(rounds, key="two", trainer=-1)) == [(Code.SHIFT_UNDER_WAY, "job_id")]
    waiting = rl_job(settled=False)
    assert refusals(ask(waiting, trainer=-1)) == [(Code.NOT_RUNNING, "job_id")]


def test_what_does_not_fit_on_the_gpus_given_up_is_refused(judged: Any) -> None:
    rounds = rl_job(named("trainer", 1, 3), named("rollout", 1, 3, gpus=2), nodes={"node-a": 4, "node-b": 1})
    judged(rounds)
    assert sizes(rounds) == {"trainer": 3, "rollout": 1}
    found = ask(rounds, trainer=-1, rollout=1)
    assert refusals(found)[0][0] is Code.NO_FIT
    assert not any(isinstance(record, RolesShifted) for record in found)
    # One GPU on each of two nodes is no place for a pod of two GPUs.
    nodes = {place.node for place in rounds.run("rl").places if place.role == "trainer"}
    assert (refusals(ask(rounds, key="two", trainer=-2, rollout=1)) == []) is (len(nodes) == 1)


def test_a_run_that_stops_meanwhile_takes_its_shift_with_it(judged: Any) -> None:
    rounds = rl_job()
    judged(rounds)
    ask(rounds, trainer=-2, rollout=2)
    rounds.finish("rl")
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    last = [record for message in read[-2:] for record in message.records]
    assert not any(isinstance(record, Grown) for record in last)
    assert rounds.state.nodes.get("node-a").gpu_free == (1000,) * 8
