"""Every mutant still applies to the sources as they are: one that does not tests nothing."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, mutants

ROOT = Path(__file__).parents[3]
MUTANTS_MIN = 25


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_names_tests_that_are_there(mutant: Mutant) -> None:
    assert mutant.apply(ROOT, "--check") == ""
    files = [word for word in mutant.killers if word.startswith("tests/")]
    assert files
    assert all((ROOT / file).exists() for file in files)


def test_there_are_as_many_mutants_as_promised() -> None:
    assert len(mutants()) >= MUTANTS_MIN
