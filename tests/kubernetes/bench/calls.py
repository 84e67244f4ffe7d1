"""What the API server was asked for, by verb and resource, as its own metrics count it."""

import re
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.kubernetes.control_plane import ControlPlane

_COUNTED = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WATCHED = ("pods", "events", "jobs")
"""Leases, nodes and the rest are written whether anybody schedules or not."""


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """Calls about pods, events and Jobs since the server began, by what the caller would name them."""

    counted: Mapping[str, float]

    @classmethod
    def now(cls, plane: ControlPlane) -> "ApiCalls":
        request = urllib.request.Request(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {plane.token()}"})
        with urllib.request.urlopen(request, timeout=30, context=plane.api().tls) as answer:
            return cls(_read(answer.read().decode()))

    def since(self, before: "ApiCalls", unit: float) -> dict[str, float]:
        return {name: (count - before.counted.get(name, 0.0)) * unit for name, count in self.counted.items()}


def _read(metrics: str) -> Mapping[str, float]:
    found = Counter[str]()
    for line in metrics.splitlines():
        counted = _COUNTED.match(line)
        labels = dict(_LABEL.findall(counted["labels"])) if counted else {}
        if counted and labels.get("resource") in _WATCHED and labels["verb"] != "WATCH":
            what = "/".join(part for part in (labels["resource"], labels.get("subresource")) if part)
            refused = "" if labels["code"].startswith("2") else f" {labels['code']}"
            found[f"{labels['verb'].lower()} {what}{refused}"] += float(counted["count"])
    return found
