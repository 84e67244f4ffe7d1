"""Plans: the fewest and cheapest victims, and none without a proved placement."""

from tessera.engine.victims import Plan
from tessera_schemas.facts import CheckpointSaved
from tessera_schemas.job import Topology
from tessera_schemas.reasons import Code, Reason
from tests.builders import node_seen
from tests.rounds import Rounds, share


def full(**policy: object) -> Rounds:
    """A node of eight GPUs full of four low jobs."""
    rounds = Rounds(nodes={"node-a": 8}, preset="priority", **policy)
    for key in ("a", "b", "c", "d"):
        rounds.submit(key, gpus=2, priority="low")
        rounds.settle()
    return rounds


def test_one_victim_is_taken_when_one_is_enough() -> None:
    rounds = full()
    rounds.submit("urgent", gpus=2, priority="urgent")
    found = rounds.plan("urgent")
    assert isinstance(found, Plan)
    assert len(found.victims) == 1
    assert [p.devices for p in found.placements] == [
        rounds.run(rounds.name(found.victims[0].job_id)).placements[0].devices
    ]


def test_the_youngest_work_is_thrown_away_first_of_one_class() -> None:
    rounds = full()
    rounds.submit("urgent", gpus=4, priority="urgent")
    assert rounds.victims("urgent") == ["c", "d"]


def test_work_that_was_saved_is_not_lost() -> None:
    rounds = full()
    rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run("a").run_id))
    rounds.submit("urgent", gpus=2, priority="urgent")
    assert rounds.victims("urgent") == ["a"]


def test_the_lowest_class_goes_first_however_much_it_has_done() -> None:
    rounds = Rounds(nodes={"node-a": 2}, preset="priority")
    rounds.submit("low", priority="low")
    rounds.settle()
    rounds.commit(ms=86_400_000)
    rounds.submit("normal", priority="normal")
    rounds.settle()
    rounds.submit("urgent", priority="urgent")
    assert rounds.victims("urgent") == ["low"]
