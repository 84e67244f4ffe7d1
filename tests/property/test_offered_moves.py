"""
Offers of moves over shards drawn by chance: whoever is asked agrees, saves its work, says no, changes its mind or keeps
silent. Nobody moves who has not agreed, offers end, and a replay decides the same.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.facts import AnyFact, CheckpointSaved, MoveReplied
from tessera_schemas.ledger import LEDGER_MESSAGE, MoveAnswered, MoveOffered
from tessera_schemas.shard.lending import WeekHours
from tessera_schemas.shard.moves import Moves
from tests.property.move_worlds import world
from tests.rounds import Rounds

SEEDS = st.integers(0, 10**9)


def answers(rounds: Rounds, chance: Random) -> list[AnyFact]:
    """What those who are asked say now, if anything."""
    said: list[AnyFact] = []
    for row in list(rounds.state.moves.values()):
        job, word = row.run_id.rpartition("-")[0], chance.choice(("yes", "no", "saves", "nothing", "nothing"))
        if word == "saves":
            path = f"/data/{rounds.state.n}"
            said.append(CheckpointSaved(kind="checkpoint_saved", run_id=row.run_id, path=path))
        elif word != "nothing":
            said.append(MoveReplied(kind="move_replied", job_id=job, accept=word == "yes", tenant="lab"))
    return said


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_whatever_those_say_who_are_asked_the_rules_hold_and_offers_end(seed: int) -> None:
    rounds, chance = world(seed), Random(seed)
    windows = chance.choice(((), (), tuple(WeekHours(hours=f"{at:02}:00-{at:02}:30") for at in range(0, 24, 2))))
    budget = {"per_tenant_week": chance.choice((None, None, 1, 3)), "windows": windows}
    moves = Moves(silence=chance.choice(("move", "stay")), veto_seconds=chance.choice((0, 90, 3600)), **budget)
    rounds.configure(move_answer_seconds=60, moves=moves)
    for _ in range(6):
        rounds.round()
        rounds.commit(*answers(rounds, chance), ms=chance.choice((1_000, 20_000, 61_000)))
    for _ in range(3):
        rounds.settle()
        rounds.commit(ms=61_000)
    assert verify(rounds.stored).findings == []
    report = Report()
    check_rules(report, rounds.stored)
    assert report.violations == []
    made = [r for data in rounds.stored for r in LEDGER_MESSAGE.validate_json(data).records]
    asked, told = (sum(isinstance(r, kind) for r in made) for kind in (MoveOffered, MoveAnswered))
    assert told or not asked
    restored = load(iter(list(dump(rounds.state))))
    assert StateHash().of(restored) == StateHash().of(rounds.state)
