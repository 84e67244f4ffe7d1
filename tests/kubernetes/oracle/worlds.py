"""
Generated worlds: a few nodes with the devices that drivers publish, classes, and pods with claims, as API objects.

A world is a function of its seed. Copies of one world stand beside each other on one API server, told apart by the
names of their nodes and pods; classes and templates are shared.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = dict[str, Any]

NAMESPACE = "oracle"
WORLD_LABEL, COPY_LABEL, GANG_LABEL = "oracle.test/world", "oracle.test/copy", "oracle.test/gang"
GPU, CUT, NIC = "gpu.example.com", "gpu.nvidia.com", "nic.example.com"
PCIE = "resource.kubernetes.io/pcieRoot"
NUMA = f"{GPU}/numa"
SICK = {"key": "oracle.test/sick", "value": "xid79", "effect": "NoSchedule"}

Seen = Callable[[str, str], Any]
"""The value of an attribute of a device by domain and name, its driver by ("", "driver"), a capacity by ("capacity",
name); raises KeyError where the device has none."""


def _has(domain: str, name: str, value: Any) -> Callable[[Seen], bool]:
    return lambda seen: seen(domain, name) == value


def _of_driver(driver: str) -> tuple[str, Callable[[Seen], bool]]:
    return f'device.driver == "{driver}"', _has("", "driver", driver)


def _at_least(driver: str, gibibytes: int) -> tuple[str, Callable[[Seen], bool]]:
    text = f'device.capacity["{driver}"].memory.compareTo(quantity("{gibibytes}Gi")) >= 0'
    return text, lambda seen: seen("capacity", "memory") >= gibibytes * 2**30


def _kind(kind: str) -> tuple[str, Callable[[Seen], bool]]:
    return f'device.attributes["{CUT}"].type == "{kind}"', _has(CUT, "type", kind)


MODEL_A = f'device.attributes["{GPU}"].model == "a"', _has(GPU, "model", "a")
NUMA_0 = f'device.attributes["{GPU}"].numa == 0', _has(GPU, "numa", 0)
NEWER = (
    f'device.attributes["{GPU}"].driverVersion.isGreaterThan(semver("1.5.0"))',
    lambda seen: tuple(map(int, seen(GPU, "driverVersion").split("."))) > (1, 5, 0),
)
FAST = f'device.attributes["{NIC}"].speed >= 200', lambda seen: seen(NIC, "speed") >= 200
FAST_IF_TOLD = (
    f'"speed" in device.attributes["{NIC}"] && device.attributes["{NIC}"].speed >= 200',
    lambda seen: _said(seen, NIC, "speed") and seen(NIC, "speed") >= 200,
)
QUARTER = f'device.attributes["{CUT}"].profile == "1g"', _has(CUT, "profile", "1g")
SHARED = "device.allowMultipleAllocations == true", _has("", "shared", True)


def _said(seen: Seen, domain: str, name: str) -> bool:
    try:
        seen(domain, name)
    except KeyError:
        return False
    return True


CLASSES: dict[str, list[tuple[str, Callable[[Seen], bool]]]] = {
    "gpu": [_of_driver(GPU)],
    "big": [_of_driver(GPU), _at_least(GPU, 80)],
    "nic": [_of_driver(NIC)],
    "cut": [_of_driver(CUT)],
    "whole": [_of_driver(CUT), _kind("gpu")],
    "part": [_of_driver(CUT), _kind("mig")],
    "any": [],
}
PREDICATES: dict[str, Callable[[Seen], bool]] = {
    **{text: holds for pairs in CLASSES.values() for text, holds in pairs},
    **dict((MODEL_A, NUMA_0, NEWER, FAST, FAST_IF_TOLD, QUARTER, SHARED, _at_least(CUT, 20), _at_least(GPU, 40))),
}
"""What each expression means, in Python: the judge evaluates no CEL."""
FITTING = {
    "gpu": (MODEL_A, NUMA_0, NEWER, _at_least(GPU, 40)),
    "big": (MODEL_A, NUMA_0),
    "nic": (FAST, FAST_IF_TOLD),
    "cut": (_at_least(CUT, 20),),
    "whole": (),
    "part": (QUARTER, _at_least(CUT, 20)),
    "any": (FAST_IF_TOLD, SHARED),
}
"""Conditions that a request of a class may have besides."""


@dataclass
class OracleWorld:
    """
    One world. `cluster` are its nodes and slices, `shared` its classes and templates, and `pods` with the claims that
    some of them name; pods of one gang have one label.
    """

    seed: int
    shared: list[Json] = field(default_factory=list)
    makes: list[list[Json]] = field(default_factory=list)
    claims: list[tuple[str, Json]] = field(default_factory=list)
    members: list[tuple[str, str, list[Json]]] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """Begins the name of everything that copies share."""
        return f"w{self.seed}"

    def cluster(self, copy: int) -> Iterator[Json]:
        """Nodes and slices of a copy."""
        for number, slices in enumerate(self.makes):
            name = f"{self.prefix}-{copy}-n{number}"
            yield _node(name, self._labels(copy))
            for at, spec in enumerate(slices):
                pool = {**spec["pool"], "name": spec["pool"]["name"].replace("NODE", name)}
                meta = {"name": f"{name}-{at}", "labels": self._labels(copy)}
                made = {**spec, "nodeName": name, "pool": pool}
                yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": made}

    def work(self, copy: int) -> Iterator[Json]:
        """Claims and pods of a copy; a claim comes before the pod that names it."""
        for name, spec in self.claims:
            yield _claim_object("ResourceClaim", f"{self.prefix}-{copy}-{name}", self._labels(copy), {"spec": spec})
        for name, gang, entries in self.members:
            named = [
                {**entry, "resourceClaimName": f"{self.prefix}-{copy}-{entry['resourceClaimName']}"}
                if "resourceClaimName" in entry
                else entry
                for entry in entries
            ]
            labels = self._labels(copy) | {GANG_LABEL: gang}
            yield _pod(f"{self.prefix}-{copy}-{name}", labels, self._labels(copy), named)

    def _labels(self, copy: int) -> dict[str, str]:
        return {WORLD_LABEL: str(self.seed), COPY_LABEL: f"{self.seed}-{copy}"}


def make_world(seed: int) -> OracleWorld:
    """The world of a seed."""
    random, world = Random(seed), OracleWorld(seed)
    for name, selectors in CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": text}} for text, _ in selectors]} if selectors else {}
        meta = {"name": f"{world.prefix}-{name}", "labels": {WORLD_LABEL: str(seed)}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        world.shared.append(kind | {"metadata": meta, "spec": spec})
    kind = random.choice(("gpus", "gpus", "cut", "shared", "mixed"))
    first = _slices(random, kind)
    for _ in range(random.randint(2, 5)):
        world.makes.append(first if random.random() < 0.5 else _slices(random, kind))
    pods = random.randint(3, 8)
    while len(world.members) < pods:
        _add_gang(random, world, kind, pods - len(world.members))
    return world


def _node(name: str, labels: dict[str, str]) -> Json:
    sizes = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def _pod(name: str, labels: dict[str, str], where: dict[str, str], claims: list[Json]) -> Json:
    container = {"name": "main", "image": "train:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    spec = {
        "nodeSelector": {COPY_LABEL: where[COPY_LABEL]},
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": claims,
        "containers": [container],
    }
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _claim_object(kind: str, name: str, labels: dict[str, str], body: Json) -> Json:
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta} | body


# -- devices ----------------------------------------------------------------------------------------------------------


def _slices(random: Random, kind: str) -> list[Json]:
    """What the drivers of one node publish; `NODE` in a pool's name stands for the node's."""
    made: list[Json] = []
    roots = [f"pci0000:{at:02d}" for at in range(random.randint(1, 2))]
    if kind in ("gpus", "mixed"):
        made += _gpus(random, roots)
    if kind in ("cut", "mixed"):
        made += _cut_gpus(random)
    if kind == "shared":
        made += _shared_gpus(random)
    if kind != "cut" and random.random() < 0.6:
        made += _nics(random, roots)
    if random.random() < 0.04:  # a pool of which half is missing
        late = [{"name": "late", "attributes": {"speed": {"int": 400}}}]
        made.append({"driver": NIC, "pool": _pool("NODE-late", count=2), "devices": late})
    return made


def _pool(name: str, generation: int = 1, count: int = 1) -> Json:
    return {"name": name, "generation": generation, "resourceSliceCount": count}


def _in_slices(random: Random, driver: str, devices: list[Json]) -> list[Json]:
    """One slice or two; some beside an older generation that says other devices."""
    pool, cut = random.choice(("NODE", "NODE-pool")), random.randint(1, len(devices))
    parts = [devices] if random.random() < 0.7 or cut == len(devices) else [devices[:cut], devices[cut:]]
    found = [{"driver": driver, "pool": _pool(pool, 2, len(parts)), "devices": part} for part in parts]
    if random.random() < 0.1:
        gone = [{**devices[0], "name": f"gone-{number}"} for number in range(2)]
        found.append({"driver": driver, "pool": _pool(pool), "devices": [{**each, "taints": []} for each in gone]})
    return found


def _gpus(random: Random, roots: list[str]) -> list[Json]:
    devices = []
    for at in range(random.randint(1, 4)):
        attributes = {
            "model": {"string": random.choice("ab")},
            "numa": {"int": at % 2},
            "driverVersion": {"version": random.choice(("1.4.9", "1.10.0"))},
            "uuid": {"string": f"GPU-{random.getrandbits(32):08x}"},
        }
        if random.random() < 0.9:
            attributes[PCIE] = {"string": random.choice(roots)}
        device = {"name": f"gpu-{at}", "attributes": attributes}
        device["capacity"] = {"memory": {"value": random.choice(("40Gi", "80Gi"))}}
        devices.append(device | _sick(random))
    return _in_slices(random, GPU, devices)


def _nics(random: Random, roots: list[str]) -> list[Json]:
    devices = []
    for at in range(random.randint(1, 3)):
        attributes = {PCIE: {"string": random.choice(roots)}}
        if random.random() < 0.9:
            attributes["speed"] = {"int": random.choice((100, 400))}
        devices.append({"name": f"nic-{at}", "attributes": attributes} | _sick(random))
    return _in_slices(random, NIC, devices)


def _sick(random: Random) -> Json:
    return {"taints": [SICK]} if random.random() < 0.12 else {}


def _cut_gpus(random: Random) -> list[Json]:
    """GPUs that may be had whole, in halves or in quarters: what overlaps draws on the same counters."""
    devices, sets = [], []
    for gpu in range(random.randint(1, 2)):
        name = f"gpu-{gpu}-counters"
        sets.append({"name": name, "counters": {f"slice-{at}": {"value": "1"} for at in range(4)}})
        shapes = [
            ("gpu", "", 0, 4),
            *(("mig", "2g", at, 2) for at in (0, 2)),
            *(("mig", "1g", at, 1) for at in range(4)),
        ]
        for kind, profile, first, size in shapes:
            if profile == "1g" and random.random() < 0.2:
                continue
            attributes: Json = {"type": {"string": kind}, "gpu": {"int": gpu}, "productName": {"string": "A100"}}
            attributes |= {"profile": {"string": profile}} if profile else {}
            own = "uuid" if kind == "gpu" else "parentUUID"
            attributes[own] = {"string": f"GPU-{gpu}"}
            used = {f"slice-{at}": {"value": "1"} for at in range(first, first + size)}
            devices.append(
                {
                    "name": f"gpu-{gpu}-{profile or 'whole'}-{first}",
                    "attributes": attributes,
                    "capacity": {"memory": {"value": f"{10 * size}Gi"}},
                    "consumesCounters": [{"counterSet": name, "counters": used}],
                }
                | _sick(random)
            )
    # The API wants shared counters in a slice without devices.
    pool = _pool("NODE", 3, 2)
    return [
        {"driver": CUT, "pool": pool, "sharedCounters": sets},
        {"driver": CUT, "pool": pool, "devices": devices},
    ]


def _shared_gpus(random: Random) -> list[Json]:
    """GPUs of which several claims have a part of the memory."""
    policies: list[Json] = [
        {},
        {"requestPolicy": {"default": "10Gi", "validRange": {"min": "10Gi", "max": "40Gi", "step": "10Gi"}}},
        {"requestPolicy": {"default": "20Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}},
        {"requestPolicy": {"default": "5Gi", "validRange": {"min": "5Gi"}}},
    ]
    devices = []
    for at in range(random.randint(1, 3)):
        attributes = {"model": {"string": random.choice("ab")}, "numa": {"int": at % 2}}
        attributes |= {"driverVersion": {"version": "2.0.0"}, PCIE: {"string": "pci0000:00"}}
        shares = random.random() < 0.8
        policy = random.choice(policies) if shares else {}
        device = {
            "name": f"gpu-{at}",
            "attributes": attributes,
            "capacity": {"memory": {"value": random.choice(("40Gi", "80Gi"))} | policy},
        }
        devices.append(device | ({"allowMultipleAllocations": True} if shares else {}) | _sick(random))
    return _in_slices(random, GPU, devices)


# -- claims -----------------------------------------------------------------------------------------------------------


def _add_gang(random: Random, world: OracleWorld, kind: str, room: int) -> None:
    """One pod, or a gang of equal pods, or one of two sorts."""
    size = min(room, random.choice((1, 1, 1, 2, 3)))
    gang, sorts = f"g{len(world.members)}", 2 if size > 1 and random.random() < 0.3 else 1
    asked = []
    for sort in range(sorts):
        entries = []
        for number in range(random.choice((1, 1, 2))):
            spec, name = {"devices": _devices(random, world.prefix, kind)}, f"{gang}-s{sort}-c{number}"
            if size == 1 and random.random() < 0.2:
                world.claims.append((name, spec))
                entries.append({"name": f"c{number}", "resourceClaimName": name})
                continue
            labels = {WORLD_LABEL: str(world.seed)}
            template = f"{world.prefix}-{name}"
            world.shared.append(_claim_object("ResourceClaimTemplate", template, labels, {"spec": {"spec": spec}}))
            entries.append({"name": f"c{number}", "resourceClaimTemplateName": template})
        asked.append(entries)
    for rank in range(size):
        world.members.append((f"{gang}-{rank}", gang, asked[rank % sorts]))


def _devices(random: Random, prefix: str, kind: str) -> Json:
    count = random.choice((1, 1, 2))
    requests = [_request(random, prefix, kind, f"r{number}", count) for number in range(count)]
    return {"requests": requests} | _constraints(random, requests, kind)


def _request(random: Random, prefix: str, kind: str, name: str, among: int) -> Json:
    if random.random() < 0.25:
        several = [{"name": f"x{at}"} | _exactly(random, prefix, kind, among) for at in range(random.choice((2, 2, 3)))]
        return {"name": name, "firstAvailable": several}
    admin = {"adminAccess": True} if random.random() < 0.05 else {}
    return {"name": name, "exactly": _exactly(random, prefix, kind, among) | admin}


def _exactly(random: Random, prefix: str, kind: str, among: int) -> Json:
    classes = {
        "gpus": ("gpu", "gpu", "gpu", "big", "nic", "any"),
        "cut": ("part", "part", "cut", "whole"),
        "shared": ("gpu", "gpu", "gpu", "nic"),
        "mixed": ("gpu", "big", "nic", "part", "whole"),
    }[kind]
    name = random.choice(classes)
    asked: Json = {"deviceClassName": f"{prefix}-{name}"}
    if random.random() < 0.1:
        asked["allocationMode"] = "All"
    else:
        asked |= {
            "allocationMode": "ExactCount",
            "count": random.choice((1, 1, 1, 2, 2, 3) if among == 1 else (1, 1, 2)),
        }
    if FITTING[name] and random.random() < 0.35:
        asked["selectors"] = [{"cel": {"expression": random.choice(FITTING[name])[0]}}]
    if random.random() < 0.2:
        asked["tolerations"] = [{"key": SICK["key"], "operator": "Exists"}]
    if name in ("gpu", "big") and random.random() < (0.7 if kind == "shared" else 0.1):
        asked["capacity"] = {"requests": {"memory": random.choice(("5Gi", "8Gi", "10Gi", "20Gi", "25Gi", "60Gi"))}}
    return asked


def _constraints(random: Random, requests: list[Json], kind: str) -> Json:
    if random.random() > 0.35:
        return {}
    named = random.choice(([], [], ["r0"]))
    match = {"cut": f"{CUT}/gpu", "mixed": PCIE}.get(kind, random.choice((PCIE, PCIE, NUMA)))
    distinct = f"{CUT}/gpu" if kind == "cut" else NUMA
    what = {"matchAttribute": match} if random.random() < 0.75 else {"distinctAttribute": distinct}
    return {"constraints": [{"requests": named} | what if named else what]}
