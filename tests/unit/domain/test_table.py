"""A table in place, and overlays that see it without ever changing it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.table import Table


def table(**rows: int) -> Table[int]:
    made: Table[int] = Table()
    for key, row in rows.items():
        made.put(key, row)
    return made


def rows_of(seen: Table[int]) -> dict[str, int]:
    return dict(seen.items())


def test_an_overlay_shows_what_is_below() -> None:
    assert rows_of(table(a=1, b=2).overlay()) == {"a": 1, "b": 2}


def test_a_getter_of_an_overlay_finds_what_is_below_and_what_was_written_and_nothing_that_was_dropped() -> None:
    top = table(a=1, b=2, c=3).overlay()
    top.put("b", 9)
    top.drop("c")
    assert [*map(top.getter(), "abcd")] == [1, 9, None, None]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        pytest.param(lambda top: top.put("a", 9), {"a": 9, "b": 2}, id="a row is replaced"),
        pytest.param(lambda top: top.put("c", 3), {"a": 1, "b": 2, "c": 3}, id="a row is added"),
        pytest.param(lambda top: top.drop("a"), {"b": 2}, id="a row of the base is dropped"),
        pytest.param(lambda top: (top.put("c", 3), top.drop("c")), {"a": 1, "b": 2}, id="an own row is dropped"),
        pytest.param(lambda top: (top.drop("a"), top.put("a", 5)), {"a": 5, "b": 2}, id="a row comes back"),
        pytest.param(lambda top: top.drop("never"), {"a": 1, "b": 2}, id="nothing is dropped"),
    ],
)
def test_what_is_written_to_an_overlay_is_seen_there_and_nowhere_else(
    change: Callable[[Table[int]], None], seen: dict[str, int]
) -> None:
    base = table(a=1, b=2)
    base.written.clear()
    top = base.overlay()
    change(top)
    assert rows_of(top) == seen
    assert len(top) == len(seen)
    assert {key: top.get(key) for key in ("a", "b", "c")} == {key: seen.get(key) for key in ("a", "b", "c")}
    assert rows_of(base) == {"a": 1, "b": 2}
    assert not base.written


def test_a_dropped_row_counts_as_written_so_that_the_hash_notices() -> None:
    base = table(a=1)
    base.written.clear()
    base.drop("a")
    assert list(base.written) == ["a"]


STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)))


@given(STEPS, STEPS, STEPS)
def test_overlays_on_overlays_behave_like_a_dictionary(
    below: list[tuple[str, int | None]], middle: list[tuple[str, int | None]], top: list[tuple[str, int | None]]
) -> None:
    model: dict[str, int] = {}
    seen: Table[int] = Table()
    for level in (below, middle, top):
        for key, row in level:
            if row is None:
                seen.drop(key)
                model.pop(key, None)
            else:
                seen.put(key, row)
                model[key] = row
        assert rows_of(seen) == model
        seen = seen.overlay()


def test_many_are_found_as_one_by_one_in_the_order_asked_for() -> None:
    top = table(a=1, b=2, c=3).overlay()
    top.put("b", 9)
    top.drop("c")
    for seen in (table(a=1, b=2, c=3), top, top.overlay()):
        keys = ["c", "never", "b", "a", "b"]
        assert seen.found(keys) == [row for key in keys if (row := seen.get(key)) is not None]
