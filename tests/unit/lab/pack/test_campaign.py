"""What the command line may name, and what a report holds."""

import pytest

from tessera.client.outcomes import Exit, Failure
from tessera_lab.pack.campaign import parse_policies, parse_seeds, parse_window, run_all
from tessera_lab.pack.summary import as_csv, figures
from tessera_lab.pack.window import Window
from tests.unit.lab.pack.small_trace import TRACE


def test_seeds_are_ranges_and_single_numbers():
    assert parse_seeds("42-44,7") == [42, 43, 44, 7]


@pytest.mark.parametrize("text", ["", "x", "5-3", "1-", "1-9999999999"])
def test_what_names_no_seed_is_a_usage_error(text):
    with pytest.raises(Failure) as refused:
        parse_seeds(text)
    assert refused.value.code is Exit.USAGE


def test_an_unknown_policy_is_told_with_those_there_are():
    with pytest.raises(Failure, match=r"no policy is called best; there are random, .*tessera"):
        parse_policies("fgd,best")


def test_a_window_is_for_the_policy_that_has_prices():
    assert parse_window(None, 256, ["fgd"]) is None
    assert parse_window(64, 256, ["tessera"]) == Window(64, 256)
    with pytest.raises(Failure, match="--window is for the policy tessera alone, not for fgd"):
        parse_window(64, 256, ["tessera", "fgd"])


def test_all_runs_are_told_and_come_back_by_policy():
    told = []
    runs = run_all(TRACE, ["fgd", "bestfit"], [1, 2], True, lambda policy, seed: told.append((policy, seed)))
    assert told == [("fgd", 1), ("fgd", 2), ("bestfit", 1), ("bestfit", 2)]
    assert [run.seed for run in runs["bestfit"]] == [1, 2]
    assert [run.causes is None for run in runs["fgd"]] == [False, True]
    assert as_csv(figures("small", runs["fgd"], {})).count("\n") == 1 + 3 * 8


def test_the_page_holds_its_pictures_and_needs_nothing_else(tmp_path):
    pytest.importorskip("matplotlib")
    from tessera_lab.pack.plots import write_report

    runs = run_all(TRACE, ["fgd"], [1], True, lambda policy, seed: None)
    page, *_ = write_report(tmp_path / "new", {"small": runs}, figures("small", runs["fgd"], {}))
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 3
    assert "http" not in text
