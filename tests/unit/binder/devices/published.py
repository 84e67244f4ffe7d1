"""Slices as drivers publish them."""

from typing import Any

from tessera.binder.devices.decide.layouts import NodeDevices, TaintRule, lay_out
from tessera.binder.devices.decide.pools import PublishedPool, judge_pool
from tessera.binder.devices.decide.slices import Slice, SliceReader

Json = dict[str, Any]
NVIDIA = "gpu.nvidia.com"


def gpu(index: int, node: str = "node-a", **more: Any) -> Json:
    """A whole GPU of NVIDIA's driver; `uses` draws on its set of counters."""
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{node}-{index}"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.95.5"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index // 2}"},
        **more.pop("attributes", {}),
    }
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **more}


def mig(index: int, profile: str, slices: int, start: int, node: str = "node-a") -> Json:
    """An instance that could be cut out of a GPU, by its memory slices."""
    used = {f"memory-slice-{at}": {"value": "1"} for at in range(start, start + slices)}
    return {
        "name": f"gpu-{index}-mig-{profile.replace('.', '')}-{start}",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": profile},
            "parentUUID": {"string": f"GPU-{node}-{index}"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
        },
        "capacity": {"memory": {"value": f"{10 * slices}Gi"}},
        "consumesCounters": [{"counterSet": f"gpu-{index}-counters", "counters": used}],
    }


def counters(index: int) -> Json:
    amounts = {f"memory-slice-{at}": {"value": "1"} for at in range(8)}
    return {"name": f"gpu-{index}-counters", "counters": amounts}


def slice_object(devices: list[Json] | None = None, node: str | None = "node-a", **more: Any) -> Json:
    """One slice; `pool`, `generation`, `count` and `driver` may be said, and any field of its spec."""
    pool = {
        "name": more.pop("pool", node or "fabric"),
        "generation": more.pop("generation", 1),
        "resourceSliceCount": more.pop("count", 1),
    }
    spec = {"driver": more.pop("driver", NVIDIA), "pool": pool, "devices": devices or [], **more}
    if node is not None:
        spec["nodeName"] = node
    name = f"{node}-{spec['driver']}-{id(spec)}"
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": spec}


def read(*objects: Json) -> list[Slice]:
    reader = SliceReader()
    found = [reader.read(one) for one in objects]
    assert None not in found
    return [one for one in found if one is not None]


def pool_of(*objects: Json) -> PublishedPool:
    return judge_pool(read(*objects))


def node_devices(
    *objects: Json, node: str = "node-a", rules: tuple[TaintRule, ...] = (), labels: dict[str, str] | None = None
) -> NodeDevices:
    pools: dict[tuple[str, str], list[Slice]] = {}
    for one in read(*objects):
        pools.setdefault((one.driver, one.pool), []).append(one)
    return lay_out(node, [judge_pool(slices) for slices in pools.values()], rules, labels or {})
