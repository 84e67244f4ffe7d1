"""The committer's scores are those of the compiled core that tries prices, bit for bit."""

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import Mix, MixKind
from tessera.domain.storing.fast import replace
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.choosing import choice
from tessera.engine.pricing.fitting import fits
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.worth_tables import Shape
from tessera.engine.scoring.price_aware import PriceAware, usual_cpu, worth_in_full
from tests.builders import node_seen

MODELS = ("a100", "h100", "l40")


@dataclass
class Drawn:
    """Nodes in use, and a mix with prices."""

    random: Random
    nodes: list[Node]
    mix: Mix

    @classmethod
    def by(cls, seed: int) -> "Drawn":
        random = Random(seed)
        nodes = [_node(random, number) for number in range(40)]
        known = tuple(sorted({_kind(random): random.randrange(1, 100_000) for _ in range(40)}.items()))
        prices = tuple(random.randrange(0, 2 * full + 1) if full else 0 for full in worth_in_full(known))
        return cls(random, nodes, Mix("default", known=known, largest_cpu_milli=128_000, prices=prices))

    def packer(self) -> Packer:
        """One whose classes are the kinds of the mix, and whose nodes have what is free of the drawn ones."""
        shapes = [Shape(MODELS.index(node.gpu_model), node.gpus, 128_000, 1) for node in self.nodes]
        weights = {_packed(kind): weight for kind, weight in self.mix.known}
        packer = Packer(shapes, len(MODELS), weights, usual_cpu(self.mix.known))
        pairs = zip(self.mix.known, self.mix.prices, strict=True)
        packer.fill(tuple(sorted((_packed(kind), price) for (kind, _), price in pairs if kind.gpus)), np.zeros(0, int))
        for n, node in enumerate(self.nodes):
            packer.core.nodes.cpu[n] = node.cpu_free
            packer.core.nodes.free[n, : node.gpus] = node.gpu_free
        return packer


def _node(random: Random, number: int) -> Node:
    gpus, cpu = random.choice((0, 1, 2, 4, 8)), random.choice((8000, 64_000, 128_000))
    seen = node_seen(f"n{number:02}", gpus, cpu_milli=cpu, gpu_model=random.choice(MODELS), device_profile="plugin")
    menu = 1000, 1000, 0, 10 * random.randrange(100), random.randrange(1000)
    left = tuple(random.choice(menu) for _ in range(gpus))
    return replace(empty_node(seen), gpu_free=left, cpu_free=random.randrange(cpu))


def _kind(random: Random) -> MixKind:
    gpus = random.choice((0, 1, 1, 1, 2, 4, 8))
    milli = 0 if not gpus else 1000 if gpus > 1 else random.choice((1000, 500, random.randrange(1, 1000)))
    models = tuple(sorted(random.sample(MODELS, random.choice((0, 0, 1, 2))))) if gpus else ()
    return MixKind(500 * random.randrange(40) + random.randrange(3), milli, gpus, models)


def _packed(kind: MixKind) -> TypicalPod:
    return TypicalPod(kind.cpu_milli, kind.gpu_milli, kind.gpus, sum(1 << MODELS.index(model) for model in kind.models))


def _need(kind: MixKind) -> Need:
    whole = kind.gpu_milli == 1000
    return Need(kind.cpu_milli, 1, kind.gpus if whole else 0, 0 if whole else kind.gpu_milli)


def _kind_of(pod: TypicalPod) -> MixKind:
    models = tuple(model for at, model in enumerate(MODELS) if pod.models >> at & 1)
    return MixKind(pod.cpu_milli, pod.gpu_milli, pod.gpus, models)


@pytest.mark.parametrize("seed", range(4))
def test_score_and_device_are_those_of_the_packer(seed: int) -> None:
    drawn = Drawn.by(seed)
    packer, policy, compared = drawn.packer(), PriceAware(drawn.mix), 0
    core = packer.core
    for t, pod in enumerate(packer.kinds):
        need = _need(_kind_of(pod))
        for n, node in enumerate(drawn.nodes):
            if fits(core.nodes, core.classes, t, n):
                score, slot = choice(core.nodes, core.classes, core.known, core.worth, core.cpu_per_gpu, t, n)
                assert policy.score(need, node) == score
                assert policy.device(need, node) == (slot if need.gpu_milli else None)
                compared += 1
    assert compared > 50


def test_pods_lie_where_the_packer_puts_them() -> None:
    """On an empty cluster, with the packer's order of nodes being that of their names."""
    drawn = Drawn.by(11)
    nodes = [replace(node, gpu_free=(1000,) * node.gpus, cpu_free=128_000, pods_free=9999) for node in drawn.nodes]
    packer, room = Drawn(drawn.random, nodes, drawn.mix).packer(), FreeCapacity(nodes, scoring=PriceAware(drawn.mix))
    pairs = zip(drawn.mix.known, drawn.mix.prices, strict=True)
    wanted = np.array([drawn.random.randrange(len(packer.kinds)) for _ in range(150)])
    prices = tuple(sorted((_packed(kind), price) for (kind, _), price in pairs if kind.gpus))
    found = []
    for t in wanted:
        kind = _kind_of(packer.kinds[t])
        placed = room.place((RoleNeed("w", 1, replace(_need(kind), gpu_models=kind.models)),))
        found.append(int(placed[0].node[1:]) if isinstance(placed, tuple) else -1)
    assert packer.fill(prices, wanted).tolist() == found
    assert sum(n >= 0 for n in found) > 20
