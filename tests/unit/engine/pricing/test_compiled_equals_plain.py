"""Compiled or not, the same bits: the prices that a small cluster is filled best by, in two processes."""

import os
import subprocess
import sys

import pytest

STORY = """
import sys
if sys.argv[1] == "plain":
    sys.modules["numba"] = None  # as if it were not installed
from tessera.engine.pricing.compiled import COMPILED
assert COMPILED == (sys.argv[1] != "plain"), COMPILED
from tessera.engine.pricing.dual_prices import SolverTerms
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.engine.pricing.simulated_filling import FillingTerms

kinds = (
    (1000, 0, 0, 0, 7), (2000, 160, 1, 0, 30), (4000, 470, 1, 0b10, 20), (6000, 810, 1, 0b101, 9),
    (4000, 1000, 1, 0, 80), (9000, 1000, 2, 0, 12), (30_000, 1000, 4, 0b1, 5),
)
shapes = ((0, 8, 96_000, 2), (1, 4, 32_000, 3), (2, 2, 16_000, 3))
plan = FillingTerms(rounds=2, tries=4, kept=2, first_group=2, next_group=2)
print(learnt(PricingProblem(kinds, shapes, 3, True), SolverTerms(draws=3, repeats=1, batches=6), plan))
"""


def told(way: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    found = subprocess.run(
        [sys.executable, "-c", STORY, way], capture_output=True, text=True, env=environment, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_compiled_and_plain_pricing_learn_the_same_prices():
    pytest.importorskip("numba")
    plain = told("plain")
    assert plain.count(",") == 6
    assert told("compiled") == plain
