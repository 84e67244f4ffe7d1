"""
The default policy: place where the worth of what stays free falls least.

The worth of a node is what its free part could still earn (`worth`), less 0.2 of what of it the usual pods cannot use
(`workload`) and 0.05 of the GPUs that have less than the usual CPU beside them; a small pull goes to fuller nodes. On a
node whole GPUs take the lowest free devices, a share the device after which the node is worth most, then the lowest.
Scores are millionths of a GPU. The weights were tuned in the lab, where the optimum is flat (docs/lab.md).
"""

from tessera.domain.mix import USUAL_CPU_PER_GPU, Known, Mix, in_full
from tessera.domain.resources import WHOLE_GPU, Need, Node
from tessera.engine.scoring.workload import PodWorkload, Usable, usable
from tessera.engine.scoring.worth import UNIT, Earnings, Worth, best_split

FRAGMENTED, STRANDED = 200, 50  # thousandths
PULL = 22_000  # millionths of a GPU
LOOKS_MAX = 16_384  # nodes in different states that are remembered

Choice = tuple[int, int | None]
"""A score, and the device of a share."""


class NodeLook:
    """What of a node does not depend on the pod: nodes that are alike share it."""

    __slots__ = ("base", "choices", "earnings", "gpu", "there", "units", "used", "whole")

    def __init__(self, node: Node, worth: Worth, workload: PodWorkload) -> None:
        self.earnings: Earnings = worth.on(node)
        self.there: Usable = workload.on(node)
        left = [max(0, part) for part in node.gpu_free]  # below 0 while more is held than there is
        self.gpu, self.whole = sum(left), left.count(WHOLE_GPU)
        self.used = [part for part in left if 0 < part < WHOLE_GPU]
        same = self.earnings.same
        self.units = sorted(same[part // UNIT] for part in self.used)
        self.choices: dict[tuple[int, int, int], Choice] = {}
        self.base = 0

    def rests(self, without: int = 0) -> tuple[int, ...]:
        """What is left on the devices in use, as the tables tell it apart; `without` one that has so much left."""
        units = self.units.copy()
        if without:
            units.remove(self.earnings.same[without // UNIT])
        return tuple(unit for unit in units if unit)


class Valued:
    """Judges by a settled mix and its prices; where nobody has priced it, a pod is worth the GPUs that it holds."""

    def __init__(self, mix: Mix) -> None:
        prices = mix.prices or worth_in_full(mix.known)
        priced = [(kind, price) for (kind, _), price in zip(mix.known, prices, strict=True)]
        self._workload, self._worth = PodWorkload(mix.known), Worth(priced, mix.largest_cpu_milli)
        self._cpu_per_gpu = usual_cpu(mix.known)
        self._looks: dict[tuple[str, str, tuple[int, ...], int], NodeLook] = {}

    def score(self, need: Need, node: Node) -> int:
        """Change of the node's worth by the pod, in millionths of a GPU, with a small pull to fuller nodes."""
        return self._choice(need, node)[0]

    def device(self, need: Need, node: Node) -> int | None:
        """Device after which the node is worth most, then the lowest; None for a pod without a share."""
        return self._choice(need, node)[1]

    def _choice(self, need: Need, node: Node) -> Choice:
        key = node.gpu_model, node.device_profile, node.gpu_free, node.cpu_free
        look = self._looks.get(key)
        if look is None:
            look = self._look(node)
            if len(self._looks) >= LOOKS_MAX:
                self._looks.clear()
            self._looks[key] = look
        asked = need.cpu_milli, need.gpus, need.gpu_milli
        found = look.choices.get(asked)
        if found is None:
            found = look.choices[asked] = self._judged(need, node, look)
        return found

    def _look(self, node: Node) -> NodeLook:
        look = NodeLook(node, self._worth, self._workload)
        cpu, gpu = node.cpu_free, look.gpu
        earn = look.earnings.row(look.whole, look.rests())[self._worth.level(cpu)]
        use = usable(look.there, self._workload.cpu_rank(cpu), self._workload.rank, look.used, look.whole)
        look.base = self._kept(earn, cpu, gpu, use) + PULL * (5 * cpu + 48 * gpu) // 640_000
        return look

    def _kept(self, earn: int, cpu: int, gpu: int, use: int) -> int:
        """How dear it is to keep a node as it would be."""
        total = self._workload.total
        fragmented = (gpu * total - use) * 1000 // total
        stranded = max(0, gpu - cpu * 1000 // self._cpu_per_gpu) * 1000
        return earn - (FRAGMENTED * fragmented + STRANDED * stranded) // 1000

    def _judged(self, need: Need, node: Node, look: NodeLook) -> Choice:
        cpu, workload = node.cpu_free - need.cpu_milli, self._workload
        level, rank = self._worth.level(cpu), workload.cpu_rank(cpu)
        if not need.gpu_milli:
            gpu, whole = look.gpu - need.gpus * WHOLE_GPU, look.whole - need.gpus
            use = usable(look.there, rank, workload.rank, look.used, whole)
            earn = look.earnings.row(whole, look.rests())[level]
            return self._kept(earn, cpu, gpu, use) - look.base, None
        best, milli, gpu = None, need.gpu_milli, look.gpu - need.gpu_milli
        for left, device in _devices(node, milli):
            used, whole = list(look.used), look.whole
            if left == WHOLE_GPU:
                whole, others = whole - 1, look.rests()
            else:
                used.remove(left)
                others = look.rests(left)
            used.append(left - milli)
            use = usable(look.there, rank, workload.rank, used, whole)
            row = look.earnings.row(whole, others)
            earn = best_split(look.earnings.device[(left - milli) // UNIT], row, level)
            after = self._kept(earn, cpu, gpu, use)
            if best is None or (after, -device) > best:
                best = after, -device
        assert best is not None  # the pod fits the node
        return best[0] - look.base, -best[1]


def _devices(node: Node, milli: int) -> list[tuple[int, int]]:
    """What is left on each device that holds the share, and the lowest that has so much left."""
    found: dict[int, int] = {}
    for device, left in enumerate(node.gpu_free):
        if left >= milli:
            found.setdefault(left, device)
    return list(found.items())


def usual_cpu(known: Known) -> int:
    """Thousandths of a CPU that the pods with GPUs ask for beside each of them, on average."""
    milli = sum(weight * kind.gpus * kind.gpu_milli for kind, weight in known)
    cpu = sum(weight * kind.cpu_milli for kind, weight in known if kind.gpus)
    return max(1, cpu * WHOLE_GPU // milli) if milli else USUAL_CPU_PER_GPU


def worth_in_full(known: Known) -> tuple[int, ...]:
    """Prices by the GPUs that a pod of each kind holds."""
    return tuple(in_full(kind) for kind, _ in known)
