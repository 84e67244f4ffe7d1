"""The seeds that every run of the tests covers; `make sim SEEDS=…` runs any number."""

import subprocess
import sys

import pytest

from tessera.testkit.sim.world import run_seed

SEEDS = 100


@pytest.mark.timeout(600)
def test_a_hundred_seeds_end_without_a_violation_and_reach_every_fault_and_phase_edge():
    done = subprocess.run(
        [sys.executable, "-m", "tessera.testkit.sim", "--seeds", str(SEEDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_same_seed_gives_the_same_ledger():
    assert run_seed(7).ledger_hash == run_seed(7).ledger_hash
