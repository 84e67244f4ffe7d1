"""A changed copy is what `dataclasses.replace` makes."""

from dataclasses import FrozenInstanceError, replace

import pytest

from tessera.domain.entities import EndedJob, Run, Use
from tessera.domain.evolve import evolved
from tessera.domain.phases import Phase
from tessera.domain.resources import NOTHING, Amount
from tests.builders import placement

RUN = Run("abcdefghij234567abcd-1", "abcdefghij234567abcd", 1, "lab", "research", (), NOTHING, (placement(),), 1, 2)
ENDED = EndedJob("a", "lab", "q", "n", "k", "h", Phase.SUCCEEDED, 1, 1, NOTHING, 1, 2, 3, 4)


def test_it_has_the_changes_and_all_else_as_it_was() -> None:
    for entity, changes in (
        (RUN, {"uids": ("u",), "bound": True}),
        (RUN, {}),
        (ENDED, {"phase": Phase.FAILED, "exit_code": 3}),
        (Use("q"), {"amount": Amount(1, 2, 3)}),
    ):
        assert evolved(entity, **changes) == replace(entity, **changes)


def test_the_one_it_was_made_from_stays_and_the_copy_is_frozen_too() -> None:
    bound = evolved(RUN, bound=True)
    assert (RUN.bound, bound.bound) == (False, True)
    with pytest.raises(FrozenInstanceError):
        bound.bound = False  # type: ignore[misc]


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(KeyError):
        evolved(RUN, bounded=True)
