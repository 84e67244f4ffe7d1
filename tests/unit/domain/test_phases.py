"""The phase table: its legal moves, and the diagram in the documentation that is made from it."""

from pathlib import Path

import pytest

from tessera.domain.errors import IllegalMove
from tessera.domain.work.phases import LEGAL, TERMINAL, Phase, moved, page

DOCUMENT = Path(__file__).parents[3] / "docs" / "phases.md"

EVERY_PAIR = [(now, to) for now in Phase for to in Phase]


@pytest.mark.parametrize(("now", "to"), [pair for pair in EVERY_PAIR if pair[1] in LEGAL[pair[0]]])
def test_a_listed_move_is_allowed(now: Phase, to: Phase) -> None:
    assert moved("j", now, to) is to


@pytest.mark.parametrize(("now", "to"), [pair for pair in EVERY_PAIR if pair[1] not in LEGAL[pair[0]]])
def test_a_move_that_is_not_listed_is_refused_and_says_which(now: Phase, to: Phase) -> None:
    with pytest.raises(IllegalMove, match=f"job j: {now} -> {to}"):
        moved("j", now, to)


def test_the_only_way_from_evicting_back_to_queued_or_to_an_end_needs_no_other_phase() -> None:
    """To running or success, as long as nothing of it was stopped."""
    assert LEGAL[Phase.EVICTING] == {Phase.RUNNING, Phase.QUEUED, Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED}


def test_a_run_that_was_allocated_ends_by_success_or_by_way_of_evicting() -> None:
    for phase in (Phase.ALLOCATED, Phase.BINDING, Phase.RUNNING):
        assert LEGAL[phase] & TERMINAL <= {Phase.SUCCEEDED}
        assert Phase.EVICTING in LEGAL[phase]


def test_every_phase_leads_to_a_terminal_one() -> None:
    ending = set(TERMINAL)
    while more := {phase for phase in Phase if phase not in ending and LEGAL[phase] & ending}:
        ending |= more
    assert ending == set(Phase)


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run `python -m tessera.domain.work.phases > docs/phases.md`"
