"""What can be watched: the metrics that the services export, and the names that a PromQL expression asks for."""

import re

from prometheus_client import Metric

from tessera.gateway.measures import Measures
from tessera.kernel.service.metrics import Metrics

FOREIGN = {
    "up",
    "apiserver_flowcontrol_request_wait_duration_seconds_bucket",
    "apiserver_flowcontrol_request_wait_duration_seconds_count",
}
"""Prometheus' own, and the API server's."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_NOT_NAMES = re.compile(
    r"\"[^\"]*\"|\{[^}]*\}|\[[^\]]*\]|\b(by|without|on|ignoring|group_left|group_right|offset)\b *(\([^)]*\)|\w+)?"
)


def exported() -> set[str]:
    """The names of all series of all services."""
    metrics = Metrics("gateway")
    Measures(metrics)
    return {name for metric in metrics.registry.collect() for name in _series(metric)}


def _series(metric: Metric) -> list[str]:
    return [metric.name + suffix for suffix in SUFFIXES.get(metric.type, ("",))]


def asked(expr: str) -> set[str]:
    """The names of metrics in an expression; every one of ours has an underscore, and functions have a parenthesis."""
    bare = _NOT_NAMES.sub(" ", expr)
    words = re.findall(r"\b([a-z][a-z0-9_]*)\b(?! *\()", bare)
    return {word for word in words if "_" in word or word == "up"}
