"""A cluster of arrays that is filled again and again by the price-aware policy, to try prices."""

from collections.abc import Mapping, Sequence

import numpy as np

from tessera.engine.pricing.arrays import NO_DEVICE, WHOLE, Classes, Ints, Nodes
from tessera.engine.pricing.best import ORDER_MASK, no_best
from tessera.engine.pricing.choosing import Core, place_all
from tessera.engine.pricing.fragmentation import TypicalPod, workload
from tessera.engine.pricing.worth import EMPTY, forget, no_worth, smallest_with_same_worth
from tessera.engine.pricing.worth_tables import PriceTable, Shape, tables
from tessera.engine.scoring.worth import LEVELS, step_of

STATES = 32_768
MOST_DEVICES = 32


class Packer:
    """
    Empty nodes of some shapes, and a class for each kind of pod of a mix, in the kinds' order.

    Equal calls give equal answers: no clock, no chance, no float.
    """

    def __init__(
        self, shapes: Sequence[Shape], models: int, weights: Mapping[TypicalPod, int], cpu_per_gpu: int
    ) -> None:
        """`weights`: how much each kind counts in the mix, by which fragmentation is measured."""
        rows = [shape for shape in shapes for _ in range(shape.nodes)]
        self.kinds, devices = sorted(weights), max(row.gpus for row in rows)
        if len(rows) >= ORDER_MASK or devices > MOST_DEVICES:
            raise ValueError(f"no cluster of this size: {len(rows)} nodes of {devices} GPUs at most")
        self._models, self._step, self._devices = models, step_of(max(row.cpu for row in rows)), devices
        self._cpu = np.array([row.cpu for row in rows], np.int64)
        # Nodes of different sizes are rows of one length; a slot without a device never counts as free.
        self._free = np.array([(WHOLE,) * row.gpus + (NO_DEVICE,) * (devices - row.gpus) for row in rows], np.int64)
        gpus, model = np.array([(row.gpus, row.model) for row in rows], np.int64).T.copy()
        order = np.arange(len(rows), dtype=np.int64)
        asked = [(kind.cpu_milli, kind.gpus, kind.gpu_milli or WHOLE, kind.models) for kind in self.kinds]
        worth = no_worth(len(rows), devices, models, LEVELS, STATES)
        worth.step[0] = self._step
        self.core = Core(
            nodes=Nodes(self._cpu.copy(), self._free.copy(), gpus, model, order),
            classes=Classes(*np.array(asked, np.int64).T.copy()),
            best=no_best(len(asked), len(rows)),
            by_order=order.copy(),
            known=workload(weights, models, devices),
            worth=worth,
            cpu_per_gpu=cpu_per_gpu,
        )

    @property
    def gpus_milli(self) -> int:
        """Thousandths of all GPUs."""
        return int(self.core.nodes.gpus.sum()) * WHOLE

    def reorder(self, order: Ints) -> None:
        """Another order for ties: of each node, its place in a permutation."""
        self.core.nodes.order[:] = order
        self.core.by_order[order] = np.arange(len(order))

    def fill(self, prices: PriceTable, wanted: Ints) -> Ints:
        """
        Empty all nodes and place pods one after the other by these prices.

        Args: `wanted`, the class of each pod.
        Returns: the node of each; NOWHERE for what fits no node.
        """
        self.core.nodes.cpu[...], self.core.nodes.free[...] = self._cpu, self._free
        worth, levels = self.core.worth, self.core.worth.spare.shape[1]
        classes, device, root = tables(prices, self._step, levels, self._devices, self._models)
        if root.shape[0] * root.shape[1] * 2 > worth.spare.shape[0]:
            raise ValueError(f"prices tell {root.shape[0]} classes of models apart: too many")
        same = smallest_with_same_worth(device)
        renewed = worth._replace(model_class=classes, device=device, same=same, root=root)
        self.core = self.core._replace(worth=renewed)
        forget(self.core.worth)
        self.core.best.cursor[:] = EMPTY
        nodes = np.empty_like(wanted)
        place_all(self.core, wanted, nodes)
        return nodes
