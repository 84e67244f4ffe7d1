"""`fast.replace` makes what `dataclasses.replace` makes, and a fast `__init__` does what a dataclass's own does."""

import dataclasses
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import EndedJob, Run, Use
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.work.phases import Phase
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
        assert replace(entity, **changes) == dataclasses.replace(entity, **changes)


def test_the_one_it_was_made_from_stays_and_the_copy_is_frozen_too() -> None:
    bound = replace(RUN, bound=True)
    assert (RUN.bound, bound.bound) == (False, True)
    with pytest.raises(FrozenInstanceError):
        bound.bound = False  # type: ignore[misc]


def test_the_copy_is_one_of_its_kind_to_sets_and_to_whoever_asks() -> None:
    copy, plain = replace(Use("q"), jobs=2), dataclasses.replace(Use("q"), jobs=2)
    assert (type(copy), hash(copy), repr(copy)) == (Use, hash(plain), repr(plain))


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        replace(RUN, bounded=True)


@dataclass(frozen=True, slots=True, order=True)
class Plain:
    """As dataclasses make it."""

    one: int
    two: str = "2"
    three: tuple[int, ...] = ()


@fast_init
@dataclass(frozen=True, slots=True, order=True)
class Quick:
    """The same, quickly made."""

    one: int
    two: str = "2"
    three: tuple[int, ...] = ()


def test_quickly_made_it_has_the_same_fields_whichever_way_they_are_given() -> None:
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ways = [((1,), {}), ((1, "b"), {}), ((), {"three": (3,), "one": 4}), ((1,), {"three": (5,)})]
    for given, named in ways:
        plain, made = Plain(*given, **named), Quick(*given, **named)
        assert (made.one, made.two, made.three) == (plain.one, plain.two, plain.three)
        assert (type(made), hash(made), repr(made)) == (Quick, hash(plain), repr(plain).replace("Plain", "Quick"))


def test_quickly_made_it_is_frozen_and_takes_no_other_fields() -> None:
    with pytest.raises(FrozenInstanceError):
        Quick(1).one = 2  # type: ignore[misc]
    refused: list[dict[str, Any]] = [{}, {"one": 1, "four": 4}]
    for wrong in refused:
        with pytest.raises(TypeError):
            Quick(**wrong)
    assert dataclasses.replace(Quick(1), two="c") == Quick(1, "c") < Quick(2)
