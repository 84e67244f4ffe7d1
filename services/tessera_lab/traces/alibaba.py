"""
cluster-trace-gpu-v2023: the nodes and pods of a production cluster, and the published results of filling it.

The same columns serve for a trace of one's own: nodes with `cpu_milli, memory_mib, gpu, model`, pods with `cpu_milli,
memory_mib, num_gpu, gpu_milli` and, if wanted, `gpu_spec` (models joined by `|`, empty: any).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera_lab.traces import TableRow, find_data, read_table

FOLDER = "gpu-v2023"
SOURCE = "github.com/alibaba/clusterdata, cluster-trace-gpu-v2023/csv"
NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_{trace}.csv"
PUBLISHED = "published_results.csv"
WHOLE = 1000
MOST_GPUS = 16
MODELS_MAX = 62
"""Of nodes and pods together: each is a bit of a signed number of 64."""


@dataclass(frozen=True, slots=True, order=True)
class TraceNode:
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, order=True)
class TracePod:
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int  # of each GPU; 0 without GPU
    models: tuple[str, ...] = ()

    @property
    def total_gpu_milli(self) -> int:
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(node.gpus for node in self.nodes) * WHOLE


def read_trace(
    name: str, environment: Mapping[str, str], directory: Path, nodes: Path | None = None, pods: Path | None = None
) -> Trace:
    """A trace by the name it was published under (`default`, `gpuspec33`, …), or from files of one's own."""
    pods = pods or find_data(Path(FOLDER, PODS.format(trace=name)), SOURCE, environment, directory)
    nodes = nodes or find_data(Path(FOLDER, NODES), SOURCE, environment, directory)
    trace = Trace(
        name,
        tuple(read_table(nodes, ("cpu_milli", "memory_mib", "gpu", "model"), _node)),
        tuple(read_table(pods, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), _pod)),
    )
    models = {node.model for node in trace.nodes} | {model for pod in trace.pods for model in pod.models}
    if len(models) > MODELS_MAX:
        raise StartupError(f"{nodes}, {pods}: {len(models)} GPU models are more than {MODELS_MAX}; leave some out")
    return trace


def _node(row: TableRow) -> TraceNode:
    model = row.text("model")
    if not model:
        raise row.malformed("model", "a node with GPUs needs a model")
    gpus = row.whole("gpu", 1, MOST_GPUS)
    return TraceNode(row.whole("cpu_milli", 1), row.whole("memory_mib", 1), gpus, model)


def _pod(row: TableRow) -> TracePod:
    gpus, milli = row.whole("num_gpu", 0, MOST_GPUS), row.whole("gpu_milli", 0, WHOLE)
    if gpus == 0 and milli:
        raise row.malformed("gpu_milli", "a share of no GPU")
    if gpus and not milli:
        raise row.malformed("gpu_milli", "a GPU of which nothing is asked for")
    if gpus > 1 and milli != WHOLE:
        raise row.malformed("gpu_milli", "several GPUs are asked for whole")
    spec = row.text("gpu_spec") if "gpu_spec" in row.values else ""
    models = tuple(sorted({model for model in spec.split("|") if model}))
    return TracePod(row.whole("cpu_milli"), row.whole("memory_mib"), gpus, milli, models)


Published = Mapping[tuple[str, str, str, int], tuple[float, float]]


def read_published(environment: Mapping[str, str], directory: Path) -> Published:
    """Mean and standard deviation by trace, policy, metric and arrived load in per cent."""
    path = find_data(Path(FOLDER, PUBLISHED), "the published artifact of the FGD paper", environment, directory)
    needed = ("trace", "policy", "metric", "arrived_load_pct", "mean", "stdev")
    return dict(read_table(path, needed, _published))


def _published(row: TableRow) -> tuple[tuple[str, str, str, int], tuple[float, float]]:
    key = row.text("trace"), row.text("policy"), row.text("metric"), row.whole("arrived_load_pct", 0, 1000)
    try:
        return key, (float(row.text("mean")), float(row.text("stdev")))
    except ValueError as error:
        raise row.malformed("mean", "mean and stdev are numbers") from error
