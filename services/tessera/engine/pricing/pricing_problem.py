"""
Pricing problem of a pool: its mix and its nodes in bare integers, so that another process can be given it.

The solver is heavy; a service that asks for prices needs only this module.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tessera.domain.devices.resources import WHOLE_GPU, GpuKind, Node
from tessera.domain.mix import Mix, MixKind, Seen
from tessera.engine.scoring.workload import runs_on

MODELS_MAX = 63
REHEARSED_FROM = 400  # arrivals; before, what is known of the mix is not worth the time
LEFT_FROM = 400  # arrivals; before, too little is known of which models the jobs tell apart
LEFT_MIN = 30  # thousandths; what is less counts as so much, or prices would follow the last few GPUs


@dataclass(frozen=True, slots=True)
class PricingProblem:
    """
    The mix and the nodes of one pool. A *model* is what kinds may be bound to: a GPU model under a device profile.

    `kinds` are those of the mix in its order: CPU, thousandths of each device, devices, models as bits (0: any), and
    weight, 0 of what runs on none of the nodes. `shapes` are equal nodes: model, devices, CPU, and how many, which is
    less than there are of models that are fuller than others (`Occupancy`). With `rehearsed` the prices are tried on
    paper as well.
    """

    kinds: tuple[tuple[int, int, int, int, int], ...]
    shapes: tuple[tuple[int, int, int, int], ...]
    models: int
    rehearsed: bool

    @property
    def gpus(self) -> int:
        """Whole GPUs of these nodes together."""
        return sum(gpus * nodes for _, gpus, _, nodes in self.shapes)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """
    What a pool's jobs hold of its models for good.

    `asked` are the kinds that have come: models on which all of them run alike are one. `turnover` is the part of the
    pods that came and are gone, in thousandths: what is held comes back and is sold again where it is 1,000, never
    where it is 0.
    """

    asked: Collection[MixKind]
    turnover: int


def occupancy_of(mix: Mix, seen: Iterable[Seen], running: int) -> Occupancy:
    """Occupancy of a mix's pool of whose pods so many run, by the rows of what has come into any pool."""
    asked = [row.kind for row in seen if row.pool == mix.pool and row.kind.gpus]
    return Occupancy(asked, 1000 - min(1000, 1000 * running // max(1, mix.arrivals)))


def make_pricing_problem(
    mix: Mix, nodes: Iterable[Node], rehearsed: bool, occupancy: Occupancy | None = None
) -> PricingProblem | None:
    """
    The pool's pricing problem; None where no GPU serves the mix, or more models do than can be told apart.

    Without `occupancy` the prices are those of the pool as if empty.
    """
    by_model: dict[GpuKind, list[Node]] = {}
    for node in nodes:
        if node.pool == mix.pool and node.gpus and not node.gone:
            by_model.setdefault(node.gpu_kind, []).append(node)
    asked = [kind for kind, _ in mix.known if kind.gpus]
    # Models that serve nothing of the mix have no price and would take numbers away from those that do: kinds name
    # models by the bits of one integer.
    serving = [alike for _, alike in sorted(by_model.items()) if any(runs_on(kind, alike[0]) for kind in asked)]
    if not 0 < len(serving) <= MODELS_MAX:
        return None
    samples = [alike[0] for alike in serving]
    shapes = Counter((model, node.gpus, node.cpu_milli) for model, alike in enumerate(serving) for node in alike)
    left = [1000] * len(serving)
    if occupancy is not None and mix.arrivals >= LEFT_FROM:
        left = _left(serving, occupancy)
    return PricingProblem(
        tuple(_row(kind, weight, samples) for kind, weight in mix.known),
        tuple((*shape, max(1, count * left[shape[0]] // 1000)) for shape, count in sorted(shapes.items())),
        len(serving),
        rehearsed and mix.arrivals >= REHEARSED_FROM,
    )


def _left(serving: list[list[Node]], occupancy: Occupancy) -> list[int]:
    """
    Thousandths of each model's nodes that can still be sold, where of the model with the most left it is 1,000.

    Only the proportions matter to prices: a pool whose models fill up alike is priced as if it were empty.
    """
    alike: dict[tuple[bool, ...], list[int]] = {}
    for model, (sample, *_) in enumerate(serving):
        # Models on which the same kinds run are one supply: what is left of either serves them all.
        alike.setdefault(tuple(runs_on(kind, sample) for kind in occupancy.asked), []).append(model)
    shares = [0] * len(serving)
    for models in alike.values():
        nodes = [node for model in models for node in serving[model]]
        share = 1000 * sum(sum(node.gpu_free) for node in nodes) // (WHOLE_GPU * sum(node.gpus for node in nodes))
        for model in models:
            shares[model] = max(LEFT_MIN, share)
    # By the model with the most left, since only proportions matter; the larger the turnover, the less it counts what
    # is held at the moment.
    most = max(shares)
    return [1000 - (1000 - 1000 * share // most) * (1000 - occupancy.turnover) // 1000 for share in shares]


def _row(kind: MixKind, weight: int, samples: list[Node]) -> tuple[int, int, int, int, int]:
    bits, every = 0, (1 << len(samples)) - 1
    if kind.gpus:
        bits = sum(1 << model for model, node in enumerate(samples) if runs_on(kind, node))
        weight = weight if bits else 0
    # All models and any model are one case, so that equal kinds are equal rows.
    return kind.cpu_milli, kind.gpu_milli, kind.gpus, 0 if bits == every else bits, weight
