"""The seeds that every run of the tests covers; `make sim SEEDS=…` runs any number."""

import subprocess
import sys

import pytest

from tessera.testkit.sim.world import run_seed

SEEDS = 300
BEHIND_OTHERS = ("nice", "-n", "10")
"""Seeds wait for nothing: they take the processors while others wait, and leave them to tests that time something."""


@pytest.mark.timeout(1200)
def test_three_hundred_seeds_end_without_a_violation_and_each_hundred_reaches_every_fault_and_phase_edge():
    done = subprocess.run(
        [*BEHIND_OTHERS, sys.executable, "-m", "tessera.testkit.sim", "--seeds", str(SEEDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_same_seed_gives_the_same_ledger():
    assert run_seed(7).ledger_hash == run_seed(7).ledger_hash
