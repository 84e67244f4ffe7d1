"""The opening of the demo tells what the events say, and draws it."""

from tessera_local.demo.story import ENDED, RUNS, STOPS, WAITS, Track, chart


def track(name: str, *steps: tuple[float, str]) -> Track:
    made = Track(name)
    for at, what in steps:
        made.step(at, what)
    return made


def test_a_track_is_drawn_in_proportion() -> None:
    drawn = track("test2", (0.0, WAITS), (2.0, RUNS), (3.0, STOPS), (3.5, WAITS), (4.0, ENDED)).chart(8.0)
    assert drawn == "·" * 16 + "█" * 8 + "▒" * 4 + "·" * 4


def test_a_short_step_is_still_seen() -> None:
    assert track("test1", (0.0, WAITS), (0.01, RUNS), (4.0, ENDED)).chart(4.0)[0] == "█"


def test_what_does_not_change_and_what_comes_after_the_end_is_no_step() -> None:
    assert track("test1", (0.0, RUNS), (1.0, RUNS), (2.0, ENDED), (3.0, WAITS)).steps == [(0.0, RUNS), (2.0, ENDED)]


def test_the_chart_fits_a_terminal_and_says_what_its_signs_mean() -> None:
    lines = list(chart({"a": track("test-p1", (0.0, WAITS), (9.0, RUNS))}, 10.0))
    assert max(map(len, lines)) <= 80
    assert "· waits" in lines[2]
