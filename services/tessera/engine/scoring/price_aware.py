"""
The default policy: place where the worth of what stays free falls least.

The worth of a node is what its free part could still earn (`worth`), less 0.2 of what of it the usual pods cannot use
(`workload`) and 0.05 of the GPUs that have less than the usual CPU beside them; a small pull goes to fuller nodes. On a
node whole GPUs take the lowest free devices, a share the device after which the node is worth most, then the lowest.
Scores are millionths of a GPU. The weights were tuned in the lab, where the optimum is flat (docs/research/lab.md).
"""

from collections.abc import Sequence
from typing import Protocol

from tessera.domain.devices.resources import WHOLE_GPU, GpuKind, Need, Node
from tessera.domain.mix import USUAL_CPU_PER_GPU, Mix, WeightedKinds, in_full
from tessera.engine.scoring.workload import PodWorkload, Usable
from tessera.engine.scoring.worth import UNIT, Earned, Earnings, Steps, Worth, best_split

FRAGMENTED, STRANDED = 200, 50  # thousandths
PULL = 22_000  # millionths of a GPU
REPLICAS_PULL_PERCENT = 1  # of the pull: so much stays for shares on nodes that offer replicas
JUDGED_MAX = 262_144  # pods on nodes in different states that are remembered; beyond, all are forgotten


def kept_worth(earned: int, gpu: int, usable: int, total: int, cpu: int, cpu_per_gpu: int) -> int:
    """
    Value of keeping a node as it would be, in millionths of a GPU: what its free part could earn, less a part of
    what nobody could use. Also compiled, for the simulated filling.

    Args:
        earned: in millionths of a GPU.
        gpu: thousandths free on all devices, beside `cpu` thousandths of a CPU.
        usable: as `PodWorkload.usable` gives it, `total` the weight that it is multiplied by.
        cpu_per_gpu: what is usual.
    """
    fragmented = (gpu * total - usable) * 1000 // total
    stranded = max(0, gpu - cpu * 1000 // cpu_per_gpu) * 1000
    return earned - (FRAGMENTED * fragmented + STRANDED * stranded) // 1000


def pull(cpu: int, gpu: int) -> int:
    """The pull away from emptier nodes: `PULL` for one of 128 free CPUs, 0.6 of it for 8 free GPUs."""
    return PULL * (5 * cpu + 48 * gpu) // 640_000


ScoredDevice = tuple[int, int | None]
"""A score, and the device of a share."""


class FreeDevices:
    """
    Devices of a node that are or would be free: `used` has, for each device in use, what is left and its rank.

    `row` says what they earn together; where one `device` is looked at apart, `one` is what it earns, `row` the others.
    """

    __slots__ = ("device", "gpu", "one", "row", "used", "whole")

    def __init__(
        self, gpu: int, whole: int, used: list[tuple[int, int]], row: Earned, one: Steps = (), device: int = -1
    ) -> None:
        self.gpu, self.whole, self.used, self.row, self.one, self.device = gpu, whole, used, row, one, device


class DeviceState:
    """State of GPUs, whatever the pod and the CPU beside them: nodes with equal GPUs share it."""

    def __init__(self, node: Node, earnings: Earnings, there: Usable, rank: list[int]) -> None:
        self._earnings, self.there, self._rank = earnings, there, rank
        self.of_replicas = node.share_milli > 0
        left = [max(0, part) for part in node.gpu_free]  # below 0 while more is held than there is
        self._gpu, self._whole = sum(left), left.count(WHOLE_GPU)
        self._used = [part for part in left if 0 < part < WHOLE_GPU]
        self._lowest: dict[int, int] = {}
        for device, part in enumerate(node.gpu_free):
            self._lowest.setdefault(part, device)
        self.now = self._without(0)
        self._after: dict[tuple[int, int], list[FreeDevices]] = {}
        self.bases: dict[int, int] = {}
        self.choices: dict[tuple[int, int, int, int], ScoredDevice] = {}

    def after(self, gpus: int, milli: int) -> list[FreeDevices]:
        """Devices that would be free after so many whole GPUs, or after a share on each device that would differ."""
        found = self._after.get((gpus, milli))
        if found is None:
            if milli:
                found = [self._with_share(left, milli) for left in self._lowest if left >= milli]
            else:
                found = [self._without(gpus)]
            self._after[gpus, milli] = found
        return found

    def _without(self, gpus: int) -> FreeDevices:
        whole = self._whole - gpus
        row = self._earnings.row(whole, self._rests(self._used))
        return FreeDevices(self._gpu - gpus * WHOLE_GPU, whole, self._ranked(self._used), row)

    def _with_share(self, left: int, milli: int) -> FreeDevices:
        others, whole = self._used.copy(), self._whole
        if left == WHOLE_GPU:
            whole -= 1
        else:
            others.remove(left)
        row, one = self._earnings.row(whole, self._rests(others)), self._earnings.device[(left - milli) // UNIT]
        used = self._ranked([*others, left - milli])
        return FreeDevices(self._gpu - milli, whole, used, row, one, self._lowest[left])

    def _rests(self, used: list[int]) -> tuple[int, ...]:
        """Units left on the devices in use, as the tables tell them apart."""
        same = self._earnings.same
        return tuple(sorted(unit for part in used if (unit := same[part // UNIT])))

    def _ranked(self, used: list[int]) -> list[tuple[int, int]]:
        return [(part, self._rank[part]) for part in used]


class PriceAware:
    """Judges by a settled mix and its prices; where nobody has priced it, a pod is worth the GPUs that it holds."""

    by_name = False
    words = 1
    whole_gpu = 1_000_000

    def __init__(self, mix: Mix) -> None:
        prices = mix.prices or worth_in_full(mix.known)
        priced = [(kind, price) for (kind, _), price in zip(mix.known, prices, strict=True)]
        self._workload, self._worth = PodWorkload(mix.known), Worth(priced, mix.largest_cpu_milli)
        self._cpu_per_gpu = usual_cpu(mix.known)
        self._states: dict[tuple[GpuKind, tuple[int, ...]], DeviceState] = {}
        self._judged = 0

    def score(self, need: Need, node: Node) -> int:
        """
        Change of the node's worth by the pod, in millionths of a GPU, with a small pull to fuller nodes.

        For shares on nodes of replicas nearly all of the pull is left out. The trials of prices know no replicas, and
        keep it there.
        """
        return self._choice(need, node)[0]

    def device(self, need: Need, node: Node) -> int | None:
        """Device after which the node is worth most, then the lowest; None for a pod without a share."""
        return self._choice(need, node)[1] if need.gpu_milli else None

    def _choice(self, need: Need, node: Node) -> ScoredDevice:
        state = self._states.get((node.gpu_kind, node.gpu_free)) or self._state(node)
        asked = node.cpu_free, need.cpu_milli, need.gpus, need.gpu_milli
        found = state.choices.get(asked)
        if found is None:
            found = state.choices[asked] = self._judge(state, *asked)
            self._judged += 1
        return found

    def _state(self, node: Node) -> DeviceState:
        if self._judged >= JUDGED_MAX:
            self._states.clear()
            self._judged = 0
        made = DeviceState(node, self._worth.on(node), self._workload.on(node), self._workload.rank)
        self._states[node.gpu_kind, node.gpu_free] = made
        return made

    def _judge(self, state: DeviceState, cpu_free: int, cpu_milli: int, gpus: int, milli: int) -> ScoredDevice:
        base = state.bases.get(cpu_free)
        if base is None:
            kept = self._most_kept(state.there, cpu_free, [state.now])[0]
            base = state.bases[cpu_free] = kept + pull(cpu_free, state.now.gpu)
        kept, device = self._most_kept(state.there, cpu_free - cpu_milli, state.after(gpus, milli))
        if milli and state.of_replicas:
            # Free replicas serve nobody else: that their node is emptier is no reason to take what others could use.
            base -= pull(cpu_free, state.now.gpu) * (100 - REPLICAS_PULL_PERCENT) // 100
        return kept - base, device if milli else None

    def _most_kept(self, there: Usable, cpu: int, frees: Sequence[FreeDevices]) -> ScoredDevice:
        """
        The highest value of keeping a node with so much CPU and some of these devices free, and the device chosen.
        """
        total, level, best = self._workload.total, self._worth.level(cpu), None
        cpu_rank, cpu_per_gpu = self._workload.cpu_rank(cpu), self._cpu_per_gpu
        single, several = there.single[cpu_rank], there.several[cpu_rank]
        for free in frees:
            gpu, whole = free.gpu, free.whole
            usable = whole * WHOLE_GPU * (single[-1] + several[min(whole, len(several) - 1)])
            for left, rank in free.used:
                usable += left * single[rank]
            earned = best_split(free.one, free.row, level) if free.device >= 0 else free.row[level]
            kept = kept_worth(earned, gpu, usable, total, cpu, cpu_per_gpu)
            if best is None or (kept, -free.device) > (best[0], -best[1]):
                best = kept, free.device
        assert best is not None  # the pod fits the node
        return best


class PodNeeds(Protocol):
    """Needs of a kind of pod, however GPU models are named."""

    @property
    def cpu_milli(self) -> int:
        """Thousandths of a CPU."""

    @property
    def gpu_milli(self) -> int:
        """Thousandths of each GPU."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""


def usual_cpu(known: Sequence[tuple[PodNeeds, int]]) -> int:
    """Thousandths of a CPU that the pods with GPUs ask for beside each of them, on average."""
    milli = sum(weight * kind.gpus * kind.gpu_milli for kind, weight in known)
    cpu = sum(weight * kind.cpu_milli for kind, weight in known if kind.gpus)
    return max(1, cpu * WHOLE_GPU // milli) if milli else USUAL_CPU_PER_GPU


def worth_in_full(known: WeightedKinds) -> tuple[int, ...]:
    """Prices by the GPUs that a pod of each kind holds."""
    return tuple(in_full(kind) for kind, _ in known)
