"""
A production mix: nodes and jobs drawn the way they occur in a real cluster.

The mix is counted from the cluster-trace-gpu-v2023 when its files are at hand (`gpu-v2023/` below $TESSERA_DATA or
`../shared/data`), else read from the figures kept beside this module: every kind of pod and node with how often it
occurs. Both give the same draws for the same seed. The trace knows only single pods and how long they lived: gangs
and run times of seconds are our additions.
"""

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from tessera_local.cluster.machines.behaviour import RUN_SECONDS
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_schemas.job import JobSpec, Resources, Role, Template

DATA_VARIABLE = "TESSERA_DATA"
DEFAULT_DATA = Path("../shared/data")
TRACE_FILES = Path("gpu-v2023/openb_pod_list_default.csv"), Path("gpu-v2023/openb_node_list_gpu_node.csv")
FIGURES = Path(__file__).with_name("mix_pods.csv"), Path(__file__).with_name("mix_nodes.csv")

MIB = 2**20
WHOLE_GPU = 1000
GANG_SHARE = 0.1  # of all jobs
GANG_PODS = (2, 4, 8, 16, 32)
RUN_SECONDS_RANGE = (3.0, 12.0)


@dataclass(frozen=True, slots=True, order=True)
class PodKind:
    """Request of one pod; `gpu_milli` of each of `gpus` devices."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    gpu_models: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True when the pod has its GPUs to itself; False for shares, and for pods without a GPU."""
        return self.gpus > 0 and self.gpu_milli == WHOLE_GPU


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


CountedKind = TypeVar("CountedKind", PodKind, NodeKind)


@dataclass(frozen=True, slots=True)
class ProductionMix:
    """Frequency of each kind of pod, and its source in words."""

    pods: Mapping[PodKind, int]
    nodes: Mapping[NodeKind, int]
    source: str

    def draw_nodes(self, random: Random, count: int) -> list[NodeRow]:
        """Draws `count` nodes, named by their model and a number."""
        kinds, weights = _sorted(self.nodes)
        drawn = sorted(random.choices(kinds, weights, k=count), key=lambda kind: (kind.model, -kind.gpus, kind))
        return [_node(index, kind) for index, kind in enumerate(drawn)]

    def draw_jobs(self, random: Random, count: int, queue: str) -> list[JobSpec]:
        """
        Draws `count` jobs; one in ten is a gang of equal pods with whole GPUs. Jobs that fit no node are drawn all the
        same.
        """
        kinds, weights = _sorted(self.pods)
        whole, whole_weights = _sorted({kind: n for kind, n in self.pods.items() if kind.whole})
        specs = []
        for index in range(count):
            if random.random() < GANG_SHARE:
                kind, pods = random.choices(whole, whole_weights)[0], random.choice(GANG_PODS)
            else:
                kind, pods = random.choices(kinds, weights)[0], 1
            specs.append(_job(index, kind, pods, random.uniform(*RUN_SECONDS_RANGE), queue))
        return specs


def find_mix(environment: Mapping[str, str], directory: Path) -> ProductionMix:
    """The mix of the trace if its files are there, else of the figures. `directory` is the one we work in."""
    named = environment.get(DATA_VARIABLE)
    for data in [*([Path(named)] if named else []), directory / DEFAULT_DATA]:
        pods, nodes = (data / file for file in TRACE_FILES)
        if pods.exists() and nodes.exists():
            return read_mix(pods, nodes, "counted from the trace")
    return read_mix(*FIGURES, "from figures kept in the project")


def read_mix(pods: Path, nodes: Path, source: str) -> ProductionMix:
    """Lists of the trace, where each line is one pod or node, or figures, where a line says how many it stands for."""
    return ProductionMix(_counted(pods, _pod_kind), _counted(nodes, _node_kind), source)


def _counted(path: Path, kind: Callable[[dict[str, str]], CountedKind]) -> Counter[CountedKind]:
    found: Counter[CountedKind] = Counter()
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found[kind(row)] += int(row.get("count", 1))
    return found


def _pod_kind(row: dict[str, str]) -> PodKind:
    gpus = int(row["num_gpu"])
    models = tuple(sorted(row["gpu_spec"].split("|"))) if row["gpu_spec"] else ()
    return PodKind(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, int(row["gpu_milli"]), models)


def _node_kind(row: dict[str, str]) -> NodeKind:
    return NodeKind(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])


def _sorted(counts: Mapping[CountedKind, int]) -> tuple[list[CountedKind], list[int]]:
    """Kinds and weights in an order of their own, so that a draw does not depend on how they were read."""
    kinds = sorted(counts)
    return kinds, [counts[kind] for kind in kinds]


def _node(index: int, kind: NodeKind) -> NodeRow:
    name = f"{kind.model.lower()}-{index:02d}"
    return NodeRow.sized(name, kind.cpu_milli, kind.memory_mib, kind.gpus, kind.model)


def _job(index: int, kind: PodKind, pods: int, seconds: float, queue: str) -> JobSpec:
    asked = {"gpus": kind.gpus} if kind.whole else {"gpu_milli": kind.gpu_milli}
    role = Role(
        name="worker",
        replicas=pods,
        resources=Resources(cpu_milli=kind.cpu_milli, memory_bytes=kind.memory_mib * MIB, **asked),
        gpu_models=kind.gpu_models,
        template=Template(image="train:1", annotations={RUN_SECONDS: f"{seconds:.2f}"}),
    )
    what = "gang" if pods > 1 else "job"
    return JobSpec(name=f"{what}-{index:03d}", queue=queue, roles=(role,), ttl_seconds_after_finished=0)
