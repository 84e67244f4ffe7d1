"""The committer's scores are those of the lab's compiled core, bit for bit: on any node, pod, mix and prices."""

from dataclasses import dataclass
from random import Random

import pytest

from tessera.domain.fast import replace
from tessera.domain.mix import Mix, MixKind
from tessera.domain.resources import Need, Node, RoleNeed, empty_node
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.choosing import CPU_PER_GPU, choice
from tessera.engine.pricing.dual_prices import Terms
from tessera.engine.pricing.fragmentation import TypicalPod as PackedKind
from tessera.engine.pricing.fragmentation import typical as typical_kinds
from tessera.engine.pricing.learner import learn, learnt
from tessera.engine.pricing.packer import Ask, Packer, Place, PoolSize
from tessera.engine.pricing.packer import NodeRoom as PackedRoom
from tessera.engine.pricing.pricing_problem import lesson_of
from tessera.engine.pricing.simulated_filling import Rehearsal
from tessera.engine.scoring.policies import Taste
from tessera.engine.scoring.price_aware import Valued, usual_cpu, worth_in_full
from tessera.engine.scoring.published import DotProduct, GpuPacking, Gradient
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Reason
from tests.builders import node_seen

Running = tuple[int, Place, RoleNeed, Placement]
MODELS = ("a100", "h100", "l40")
SHORT, BRIEF = Terms(draws=4, sales=1, lots=8), Rehearsal(rounds=1, tries=4, kept=2, first_group=2, next_group=2)


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

    def packer(self, policy: str) -> Packer:
        packer = Packer(PoolSize(len(self.nodes), 8, len(MODELS), 128_000), policy)
        for n, node in enumerate(self.nodes):
            model = MODELS.index(node.gpu_model)
            packer.set_node(n, PackedRoom(node.cpu_free, 10**6, node.pods_free, model, node.gpu_free))
        counts = {_packed(kind): weight for kind, weight in self.mix.known}
        packer.know(counts if policy == "tessera" else typical_kinds(counts))
        pairs = zip(self.mix.known, self.mix.prices, strict=True)
        packer.price(tuple(sorted((_packed(kind), price) for (kind, _), price in pairs if kind.gpus)))
        packer.core.scales.weights[CPU_PER_GPU] = usual_cpu(self.mix.known)
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


def _packed(kind: MixKind) -> PackedKind:
    return PackedKind(kind.cpu_milli, kind.gpu_milli, kind.gpus, sum(1 << MODELS.index(model) for model in kind.models))


def _need(kind: MixKind) -> Need:
    whole = kind.gpu_milli == 1000
    return Need(kind.cpu_milli, 1, kind.gpus if whole else 0, 0 if whole else kind.gpu_milli)


def _tastes(mix: Mix) -> dict[str, Taste]:
    return {"tessera": Valued(mix), "fgd": Gradient(mix), "dotprod": DotProduct(), "gpu-packing": GpuPacking()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["tessera", "fgd", "dotprod", "gpu-packing"])
def test_score_and_device_are_those_of_the_packer(policy: str, seed: int) -> None:
    drawn = Drawn.by(seed)
    packer, taste, compared = drawn.packer(policy), _tastes(drawn.mix)[policy], 0
    core = packer.core
    parts = core.policy, core.nodes, core.classes, core.known, core.worth, core.scales
    for _ in range(12):
        kind = _kind(drawn.random)
        t = packer.add_class(Ask(kind.cpu_milli, 1, kind.gpus, kind.gpu_milli or 1000))
        need = _need(kind)
        for n, node in enumerate(drawn.nodes):
            if packer.fits(t, n):
                score, slot = choice(*parts, t, n)
                assert taste.score(need, node) == score
                assert taste.device(need, node) in (None, slot)
                assert slot < 0 or policy not in ("tessera", "fgd") or taste.device(need, node) == slot
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("policy", ["tessera", "fgd", "dotprod", "gpu-packing"])
def test_pods_that_come_and_go_lie_where_the_packer_puts_them(policy: str) -> None:
    """Node and device of each, with the packer's order of nodes being that of their names."""
    drawn = Drawn.by(11)
    packer, taste, running = drawn.packer(policy), _tastes(drawn.mix)[policy], list[Running]()
    room = FreeCapacity(drawn.nodes, taste=taste)
    kinds = [_kind(drawn.random) for _ in range(8)]
    numbers = [packer.add_class(Ask(kind.cpu_milli, 1, kind.gpus, kind.gpu_milli or 1000)) for kind in kinds]
    for _ in range(150):
        if running and drawn.random.random() < 0.4:
            t, place, role, placement = running.pop(drawn.random.randrange(len(running)))
            packer.release(t, place)
            left = room.nodes[placement.node].taking(role.need, placement, -1)
            assert room.renewed([left if node.name == left.name else node for node in room.nodes.values()], taste)
            continue
        which = drawn.random.randrange(len(kinds))
        role = RoleNeed("w", 1, _need(kinds[which]))
        expected, found = packer.place(numbers[which]), room.place((role,))
        if expected is None:
            assert isinstance(found, Reason)
            continue
        assert not isinstance(found, Reason)
        (placement,) = found
        assert placement.node == drawn.nodes[expected.node].name
        assert sum(1 << device for device in placement.devices) == expected.devices
        running.append((numbers[which], expected, role, placement))
    assert len(running) > 20


def test_prices_that_a_service_learns_make_the_same_scores_as_the_packers_own() -> None:
    """From the same mix and nodes: through a lesson and the mix of the state, and through a table of the packer's."""
    drawn = Drawn.by(5)
    known = tuple((replace(kind, cpu_milli=kind.cpu_milli // 500 * 500), w) for kind, w in drawn.mix.known)
    mix = replace(drawn.mix, known=tuple(sorted(dict(known).items())), arrivals=5000, prices=())
    lesson = lesson_of(mix, drawn.nodes, rehearsed=True)
    assert lesson is not None
    priced = replace(mix, prices=learnt(lesson, SHORT, BRIEF))
    packer = Drawn(drawn.random, drawn.nodes, priced).packer("tessera")
    empty = [replace(node, cpu_free=node.cpu_milli, gpu_free=(1000,) * node.gpus) for node in drawn.nodes]
    shapes = Drawn(drawn.random, empty, priced).packer("tessera").shapes()
    packer.price(learn({_packed(kind): weight for kind, weight in mix.known}, shapes, len(MODELS), SHORT, BRIEF))
    taste, compared = Valued(priced), 0
    for kind, _ in mix.known:
        t = packer.add_class(Ask(kind.cpu_milli, 1, kind.gpus, kind.gpu_milli or 1000))
        for n, node in enumerate(drawn.nodes):
            if packer.fits(t, n):
                core = packer.core
                parts = core.policy, core.nodes, core.classes, core.known, core.worth, core.scales
                assert taste.score(_need(kind), node) == choice(*parts, t, n)[0]
                compared += 1
    assert compared > 50
