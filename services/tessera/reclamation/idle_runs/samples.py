"""Samples of the use of GPUs as sources write them, read into percent per pod. Pure."""

import re
from collections.abc import Iterable, Mapping

from tessera.reclamation.idle_runs.decide import GpuUsage

_SAMPLE = re.compile(r"\{(?P<labels>.*)\}\s+(?P<value>\S+)(?:\s+-?[0-9]+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
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


def percent_of(text: str) -> int | None:
    """Rounded up, so that the least use is not none; None for NaN and the infinite. Raises ValueError."""
    value = float(text)
    return -int(-value // 1) if 0 <= value <= 1_000_000 else None


def busiest(samples: Iterable[tuple[Mapping[str, str], str]]) -> GpuUsage:
    """Use of each pod's busiest GPU; samples without a number or a pod are left out. Raises ValueError."""
    found: dict[tuple[str, str], int] = {}
    for labels, value in samples:
        pod, percent = pod_of(labels), percent_of(value)
        if pod is not None and percent is not None:
            found[pod] = max(percent, found.get(pod, 0))
    return found


def read_exposition(text: str, metric: str) -> GpuUsage:
    """The samples of one metric in the text format that exporters serve. Raises ValueError for a line that is none."""
    return busiest(_samples(text, metric))


def _samples(text: str, metric: str) -> Iterable[tuple[Mapping[str, str], str]]:
    for line in text.splitlines():
        name, rest = line[: len(metric)], line[len(metric) :].lstrip()
        if name != metric or not rest.startswith("{"):
            continue
        found = _SAMPLE.match(rest)
        if found is None:
            raise ValueError(f"{line[:100]!r} is no sample")
        labels = {key: _ESCAPED.sub(_plain, value) for key, value in _LABEL.findall(found["labels"])}
        yield labels, found["value"]


def _plain(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
