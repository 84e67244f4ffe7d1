"""
Pricing problem of a pool: its mix and its nodes in bare integers, so that another process can be given it.

The solver is heavy; a service that asks for prices needs only this module.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tessera.domain.mix import Mix, MixKind
from tessera.domain.resources import Node
from tessera.engine.scoring.workload import runs_on

MODELS_MAX = 63
REHEARSED_FROM = 400  # arrivals; before, what is known of the mix is not worth the time


@dataclass(frozen=True, slots=True)
class PricingProblem:
    """
    The mix and the nodes of one pool. A *model* is what kinds may be bound to: a GPU model under a device profile.

    `kinds` are those of the mix in its order: CPU, thousandths of each device, devices, models as bits (0: any), and
    weight, 0 of what runs on none of the nodes. `shapes` are equal nodes: model, devices, CPU, and how many. With
    `rehearsed` the prices are tried on paper as well.
    """

    kinds: tuple[tuple[int, int, int, int, int], ...]
    shapes: tuple[tuple[int, int, int, int], ...]
    models: int
    rehearsed: bool

    @property
    def gpus(self) -> int:
        """Whole GPUs of all nodes together."""
        return sum(gpus * nodes for _, gpus, _, nodes in self.shapes)


def make_pricing_problem(mix: Mix, nodes: Iterable[Node], rehearsed: bool) -> PricingProblem | None:
    """The pool's pricing problem; None where no GPU serves the mix, or more models do than can be told apart."""
    by_model: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        if node.pool == mix.pool and node.gpus and not node.gone:
            by_model.setdefault((node.gpu_model, node.device_profile), []).append(node)
    asked = [kind for kind, _ in mix.known if kind.gpus]
    serving = [alike for _, alike in sorted(by_model.items()) if any(runs_on(kind, alike[0]) for kind in asked)]
    if not 0 < len(serving) <= MODELS_MAX:
        return None
    samples = [alike[0] for alike in serving]
    shapes = Counter((model, node.gpus, node.cpu_milli) for model, alike in enumerate(serving) for node in alike)
    return PricingProblem(
        tuple(_row(kind, weight, samples) for kind, weight in mix.known),
        tuple((*shape, count) for shape, count in sorted(shapes.items())),
        len(serving),
        rehearsed and mix.arrivals >= REHEARSED_FROM,
    )


def _row(kind: MixKind, weight: int, samples: list[Node]) -> tuple[int, int, int, int, int]:
    bits, every = 0, (1 << len(samples)) - 1
    if kind.gpus:
        bits = sum(1 << model for model, node in enumerate(samples) if runs_on(kind, node))
        weight = weight if bits else 0
    return kind.cpu_milli, kind.gpu_milli, kind.gpus, 0 if bits == every else bits, weight
