"""Samples of the use of GPUs as sources write them, read into the use of each GPU of each pod. Pure."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from tessera.reclamation.idle_runs.decide import GpuSample, GpuUsage

_SAMPLE = re.compile(r"\{(?P<labels>.*)\}\s+(?P<value>\S+)(?:\s+-?[0-9]+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
UUID = "uuid "
"""Before a UUID, which names one GPU among those of all nodes; a number does not."""
_ESCAPED = re.compile(r"\\(.)")


def pod_of(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """
    Namespace and name of the pod that a sample is about; None when it names none.

    A scrape that does not honour the exporter's labels renames them to `exported_…`; these come first, since `pod` is
    then the exporter's own.
    """
    pod = labels.get("exported_pod") or labels.get("pod")
    namespace = labels.get("exported_namespace") if labels.get("exported_pod") else labels.get("namespace")
    return (str(namespace or ""), str(pod)) if pod else None


def gpu_of(labels: Mapping[str, str]) -> str:
    """The GPU that a sample is about: its UUID or, where there is none, its number, and the MIG instance on it."""
    uuid, number = labels.get("UUID"), labels.get("gpu", "")
    return f"{UUID}{uuid}" if uuid and not labels.get("GPU_I_ID") else f"{uuid or number}/{labels.get('GPU_I_ID', '')}"


def whole_of(text: str) -> int | None:
    """Rounded up, so that the least use is not none; None for NaN and the infinite. Raises ValueError."""
    value = float(text)
    return -int(-value // 1) if 0 <= value <= 1_000_000 else None


Samples = Iterable[tuple[Mapping[str, str], str]]
"""Labels and values, as sources write them."""


def by_pod(percents: Samples, memories: Samples = ()) -> GpuUsage:
    """
    Use of each pod's GPUs, and their memory in MiB; of several samples of one GPU the highest. Samples without a
    number or a pod are left out. Raises ValueError.
    """
    used, memory, pods = _highest(percents), _highest(memories), dict[str, set[tuple[str, str]]]()
    for pod, gpu in used:
        pods.setdefault(gpu, set()).add(pod)
    found: dict[tuple[str, str], tuple[GpuSample, ...]] = {}
    for (pod, gpu), percent in sorted(used.items()):
        shared = gpu.startswith(UUID) and len(pods[gpu]) > 1
        found[pod] = (*found.get(pod, ()), GpuSample(gpu, percent, memory.get((pod, gpu)), shared))
    return found


def _highest(samples: Samples) -> dict[tuple[tuple[str, str], str], int]:
    found: dict[tuple[tuple[str, str], str], int] = {}
    for labels, value in samples:
        pod, number = pod_of(labels), whole_of(value)
        if pod is not None and number is not None:
            key = pod, gpu_of(labels)
            found[key] = max(number, found.get(key, 0))
    return found


def read_exposition(text: str, metric: str, memory_metric: str = "") -> GpuUsage:
    """The samples of two metrics in the text format that exporters serve. Raises ValueError for a line that is none."""
    return by_pod(_samples(text, metric), _samples(text, memory_metric) if memory_metric else ())


def _samples(text: str, metric: str) -> Samples:
    return ((labels, value) for _, labels, value in read_samples(text, (metric,)))


def read_samples(text: str, metrics: Container[str]) -> Iterator[tuple[str, Mapping[str, str], str]]:
    """Metric, labels and value of each sample of these metrics with labels. Raises ValueError for one that is none."""
    for line in text.splitlines():
        name, brace, _ = line.partition("{")
        name = name.rstrip()
        if not brace or name not in metrics:
            continue
        found = _SAMPLE.match(line, line.index(brace))
        if found is None:
            raise ValueError(f"{line[:100]!r} is no sample")
        labels = {key: _ESCAPED.sub(_plain, value) for key, value in _LABEL.findall(found["labels"])}
        yield name, labels, found["value"]


def _plain(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
