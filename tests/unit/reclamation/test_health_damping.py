"""Damping: what flaps is told once, what has gone is over after a while, and a source that is away changes nothing."""

import pytest

from tessera.reclamation.health.damping import Damper, Sighting
from tessera_schemas.cluster.health import AILMENTS_MAX, Ailment, HealthCause

HEAT = Ailment(cause=HealthCause.GPU_THROTTLED, device="GPU-1", evidence="heat")
LOST = Ailment(cause=HealthCause.GPU_LOST, device="GPU-1", evidence="XID 79")
LOOKS, GONE, GAP = 3, 300, 120


class Looks:
    """Looks at one node, with what was said before as what the ledger knows."""

    def __init__(self, known: tuple[Ailment, ...] = ()) -> None:
        self.damper, self.said, self.now, self.changes = Damper(LOOKS, GONE, GAP), known, 0, 0

    def at(self, now: int, *found: Sighting) -> tuple[Ailment, ...]:
        told = self.damper.look("n", self.said, found, now)
        self.changes += told != self.said
        self.said, self.now = told, now
        return told


def test_a_fault_that_may_pass_is_told_from_the_third_look_on_and_an_event_at_once() -> None:
    looks = Looks()
    assert [looks.at(at, Sighting(HEAT)) for at in (0, 30, 60)] == [(), (), (HEAT,)]
    assert looks.at(90, Sighting(HEAT), Sighting(LOST, at_once=True)) == (LOST, HEAT)


def test_a_fault_that_flaps_at_every_look_is_told_once_and_stays_told() -> None:
    looks = Looks()
    for at in range(0, 6000, 30):
        looks.at(at, *([Sighting(HEAT)] if at % 60 else []))
    assert looks.said == (HEAT,)
    assert looks.changes == 1


@pytest.mark.parametrize(("without", "over"), [(GONE - 30, False), (GONE, True)], ids=["almost", "long enough"])
def test_a_fault_is_over_once_it_has_not_been_seen_for_a_while(without: int, over: bool) -> None:
    looks = Looks()
    looks.at(0, Sighting(LOST, at_once=True))
    for at in range(30, 30 + without + 1, 30):
        looks.at(at)
    assert (looks.said == ()) is over


def test_time_in_which_nobody_looked_ends_nothing() -> None:
    looks = Looks()
    looks.at(0, Sighting(LOST, at_once=True))
    looks.at(30)
    assert looks.at(30 + 10 * GONE) == (LOST,)
    for at in range(30 + 10 * GONE, 30 + 11 * GONE, 30):
        assert looks.at(at) == (LOST,)
    assert looks.at(30 + 11 * GONE) == ()


def test_after_a_restart_what_the_ledger_knows_goes_on_and_is_taken_back_once_it_is_gone() -> None:
    looks = Looks(known=(LOST, HEAT))
    assert looks.at(5000, Sighting(LOST, at_once=True)) == (LOST, HEAT)
    for at in range(5030, 5030 + GONE + 30, 30):
        looks.at(at, Sighting(LOST, at_once=True))
    assert looks.said == (LOST,)


def test_evidence_that_changes_is_no_news() -> None:
    looks = Looks()
    for number in range(10):
        looks.at(30 * number, Sighting(HEAT.model_copy(update={"evidence": f"heat {number}"})))
    assert looks.changes == 1


def test_of_too_many_the_gravest_are_told() -> None:
    many = [Ailment(cause=HealthCause.GPU_THROTTLED, device=f"GPU-{number:03}") for number in range(2 * AILMENTS_MAX)]
    told = Looks().at(0, *(Sighting(one, at_once=True) for one in many), Sighting(LOST, at_once=True))
    assert len(told) == AILMENTS_MAX
    assert told[0] == LOST


def test_a_node_that_is_no_more_is_forgotten() -> None:
    looks = Looks()
    looks.at(0, Sighting(LOST, at_once=True))
    looks.damper.forget(["n"])
    looks.said = ()
    assert looks.at(30) == ()
    assert looks.damper.nodes == ("n",)
