"""Of a run's pod the binder keeps what it reads, and nothing of what the pod is made of."""

from typing import Any

import pytest

from tessera.binder.decide.steps import read_pod
from tessera.binder.nodes.uses import SPEC, STATUS, only_what_is_read
from tests.unit.binder.binder_builders import api_pod


class Noting(dict[str, Any]):
    """Notes which of its entries are asked for."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_everything_that_is_read_of_a_pod_is_kept() -> None:
    pod = api_pod()
    pod["spec"], pod["status"] = Noting(pod.get("spec", {})), Noting(pod.get("status", {}))
    read_pod(pod)
    assert pod["spec"].asked <= set(SPEC)
    assert pod["status"].asked <= set(STATUS)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_slim_pod_is_read_as_the_whole_one(phase: str) -> None:
    pod = api_pod(phase=phase)
    pod["metadata"]["managedFields"] = [{"manager": "somebody"}]
    pod["spec"]["containers"] = [{"name": "main", "env": [{"name": "MUCH", "value": "more"}]}]
    slim = only_what_is_read(pod)
    assert read_pod(slim) == read_pod(pod)
    assert "containers" not in slim["spec"]
    assert "managedFields" not in slim["metadata"]


def test_a_pod_that_says_next_to_nothing_stays_readable() -> None:
    bare = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
    assert read_pod(only_what_is_read(bare)) == read_pod(bare)
