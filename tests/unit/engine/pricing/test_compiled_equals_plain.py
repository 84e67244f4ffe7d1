"""Compiled or not, the same bits: places, prices and fragmentation of a small cluster, in two processes."""

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
from random import Random
from tessera.engine.pricing.fragmentation import fragmented
from tessera.engine.pricing.learner import Learner
from tessera.engine.pricing.dual_prices import Terms
from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, PoolSize
from tessera.engine.pricing.policies import POLICIES
import numpy as np

for policy in POLICIES:
    random = Random(7)
    packer = Packer(PoolSize(12, 8, 3, 128_000), policy, random.sample(range(12), 12), seed=3)
    for n in range(12):
        free = (1000,) * random.choice([1, 2, 4, 8])
        packer.set_node(n, NodeRoom(random.choice([16_000, 96_000]), 400, 20, random.randrange(3), free))
    for _ in range(12):
        count = random.choice([0, 1, 1, 1, 2, 4])
        milli = random.choice([160, 320, 470, 810, 1000]) if count == 1 else 1000
        models = random.choice([0, 0, 1, 6]) if count else 0
        packer.add_class(Ask(random.randrange(1, 13) * 1000, random.randrange(1, 40), count, milli, models))
    packer.know({ask.kind: 1 for ask in packer.asks})
    learner = Learner(packer, Terms(draws=1, sales=1, lots=3)) if policy == "tessera" else None
    running = []
    for turn in range(2):
        wanted = [random.randrange(12) for _ in range(40)]
        running += [(t, place) for t, place in zip(wanted, packer.place_all(wanted)) if place]
        print(policy, running)
        for _ in range(len(running) // 2):
            packer.release(*running.pop(random.randrange(len(running))))
        if learner:
            learner.see(np.array(wanted))
    print([int(fragmented(packer.core.nodes, packer.core.known, n)) for n in range(12)])
"""


def told(way: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    found = subprocess.run(
        [sys.executable, "-c", STORY, way], capture_output=True, text=True, env=environment, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_compiled_core_and_the_plain_one_tell_the_same_story():
    pytest.importorskip("numba")
    plain = told("plain")
    assert plain.count("Place(") > 100
    assert told("compiled") == plain
