"""The examples of a property test depend on the test alone, so that a change elsewhere never makes another test red."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import PROFILE

CONSTANTS = [100_000_007 + number * 1_000_003 for number in range(200)]


def drawn() -> list[tuple[int, str]]:
    """What a property test of numbers and texts draws."""
    examples: list[tuple[int, str]] = []

    @settings(max_examples=200, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(), st.text())
    def each(number: int, text: str) -> None:
        examples.append((number, text))

    each()
    return examples


def load(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import a module as if it were one of the project's."""
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, source.stem, module)
    spec.loader.exec_module(module)


@pytest.mark.skipif(PROFILE != "same", reason="a run that explores draws from code")
def test_one_more_module_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    source = tmp_path / "changed_elsewhere.py"
    source.write_text(f"NUMBERS, TEXTS = {CONSTANTS}, {[f'text {number}' for number in CONSTANTS]}\n")
    load(source, monkeypatch)
    assert drawn() == before
