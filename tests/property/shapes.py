"""Random clusters and gangs, small enough that they often do not fit."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.levels import NEAR
from tessera.domain.devices.mig.instances import layout
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS, SERVES
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE
from tessera_schemas.facts import NodeSeen

MODELS = ("a100", "h100")
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
RACKS = ("r0", "r1", "r2")
AFFINITIES = (
    (("rack", "In", ("r0", "r1")),),
    (("rack", "NotIn", ("r0",)),),
    (("rack", "Exists", ()), ("zone", "NotIn", ("a",))),
    (("rack", "DoesNotExist", ()),),
)

PREFERENCES = (
    ((20, (("rack", "In", ("r1",)),)),),
    ((30, (("zone", "In", ("b",)),)), (20, (("rack", "In", ("r0", "r2")),))),
    ((1, (("rack", "Exists", ()), ("zone", "In", ("a",)))), (100, (("rack", "In", ("r2",)),))),
)
preferences = st.sampled_from(((), (), *PREFERENCES))


@st.composite
def others(draw: st.DrawFn) -> dict[str, Any]:
    """What pods of others take: mostly nothing, at times more than there is."""
    if draw(st.integers(0, 2)):
        return {}
    taken = {"cpu_milli": draw(st.integers(0, 3)) * 1000, "memory_bytes": draw(st.integers(0, 3))}
    more = {"pods": draw(st.integers(0, 3)), "gpus": draw(st.integers(0, 3))}
    return {**taken, **more, "devices": {"rdma/hca": 1} if draw(st.booleans()) else {}}


MADE = ({"3g.20gb": 3, "1g.5gb": 2}, {"1g.5gb": 7}, {"1g.10gb": 2, "2g.10gb": 2})


@st.composite
def device_profiles(draw: st.DrawFn) -> dict[str, object]:
    """Who hands out a node's GPUs, which they are and how they are cut."""
    profile, gpus = draw(st.sampled_from(tuple(SERVES))), draw(st.integers(0, 4))
    if profile in NAMES_ITS_CARDS:
        return {"device_profile": profile, "gpus": gpus, "gpu_uuids": tuple(f"GPU-{slot}" for slot in range(gpus))}
    if profile != "mig":
        return {"device_profile": profile, "gpus": gpus}
    if draw(st.booleans()):
        return {"device_profile": profile, "gpus": gpus, "mig_geometry": draw(st.sampled_from(("40gb", "80gb")))}
    made = draw(st.sampled_from(MADE))
    cut = layout("40gb", tuple(made.items()))
    return {"device_profile": profile, "gpus": len(cut), "mig_geometry": "40gb", "mig_instances": made}


soft_taints = st.sampled_from(
    ([], [], [{"key": "own", "effect": "PreferNoSchedule"}], [{"key": "nvidia.com/gpu", "effect": "PreferNoSchedule"}])
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    devices = draw(device_profiles())
    rack = draw(st.sampled_from((*RACKS, "")))
    tainted = draw(st.booleans()) and draw(st.booleans())
    seen = NodeSeen.model_validate(
        {
            "kind": "node_seen",
            "name": name,
            "ready": draw(st.integers(0, 5)) > 0,
            "cpu_milli": draw(st.integers(0, 8)) * 1000,
            "memory_bytes": draw(st.integers(0, 8)),
            "pods": draw(st.integers(0, 6)),
            "gpu_model": draw(st.sampled_from(MODELS)),
            **devices,
            "gpu_memory_bytes": draw(st.sampled_from((0, 40, 80))),
            "devices": {"rdma/hca": draw(st.integers(0, 3))} if draw(st.booleans()) else {},
            "labels": {"zone": draw(st.sampled_from("ab"))} | ({"rack": rack} if rack else {}),
            "taints": [*([{"key": "own", "effect": "NoSchedule"}] if tainted else []), *draw(soft_taints)],
            "others": draw(others()),
        }
    )
    return empty_node(seen)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [draw(nodes(f"n{number}")) for number in range(draw(st.integers(0, 5)))]


ZONE = (("cpu", 3000), ("nvidia.com/gpu", 2), ("rdma/hca", 1))
zones = st.sampled_from(((), (), (ZONE, ZONE[1:]), (ZONE, (("nvidia.com/gpu", 2), ("rdma/hca", 2)))))


@st.composite
def zoned(draw: st.DrawFn, clusters: st.SearchStrategy[list[Node]]) -> list[Node]:
    """Clusters of which the kubelets of some nodes keep each pod within one NUMA zone."""
    return [replace(node, zones=draw(zones)) for node in draw(clusters)]


seats = st.sampled_from(((),) * 6 + ((("/lab/web", 1),), (("/lab/one/", 1), ("/lab/web", 1))))
"""Anti-affinity groups of a need, as its devices have them."""


@st.composite
def devices_of(draw: st.DrawFn, has_part: bool) -> tuple[tuple[str, int], ...]:
    """Further devices of a pod, and at times a node to itself, which nobody with a part of a GPU has."""
    devices = (("rdma/hca", draw(st.integers(1, 2))),) if draw(st.integers(0, 4)) == 0 else ()
    return (*devices, (WHOLE_NODE, 1)) if not has_part and draw(st.integers(0, 5)) == 5 else devices


@st.composite
def needs(draw: st.DrawFn) -> Need:
    gpus = draw(st.sampled_from((0, 0, 0, 1, 2, 4)))
    gpu_milli = 0 if gpus else draw(st.sampled_from((0, 0, 100, 500, 999)))
    mig_profile = "" if gpus or gpu_milli else draw(st.sampled_from(("", *PROFILES)))
    return Need(
        cpu_milli=draw(st.integers(1, 4)) * 1000,
        memory_bytes=draw(st.integers(1, 4)),
        gpus=gpus,
        gpu_milli=gpu_milli,
        gpu_models=tuple(draw(st.sets(st.sampled_from(MODELS), max_size=1))),
        node_selector=(("zone", "a"),) if draw(st.integers(0, 4)) == 0 else (),
        tolerations=(("own", "", ""),) if draw(st.booleans()) else (),
        affinity=draw(st.sampled_from(AFFINITIES)) if draw(st.integers(0, 4)) == 0 else (),
        gpu_memory_bytes=draw(st.sampled_from((0, 0, 20, 60))) if gpus or gpu_milli else 0,
        mig_profile=mig_profile,
        devices=draw(seats) + draw(devices_of(bool(gpu_milli or mig_profile))),
        gpu_parts=draw(st.sampled_from((1, 1, 2, 3))) if gpu_milli or mig_profile else 1,
        affinity_preferred=draw(preferences),
    )


@st.composite
def gangs(draw: st.DrawFn) -> tuple[RoleNeed, ...]:
    return tuple(
        RoleNeed(f"role-{number}", draw(st.integers(1, 4)), draw(needs())) for number in range(draw(st.integers(1, 3)))
    )


@st.composite
def roomy_nodes(draw: st.DrawFn, name: str) -> Node:
    """Nodes that mostly take what `small_needs` ask for, so that only how the pods lie decides."""
    cut = draw(st.integers(0, 3)) == 3
    rack = draw(st.sampled_from((*RACKS, *RACKS, "")))
    seen = NodeSeen.model_validate(
        {
            "kind": "node_seen",
            "name": name,
            "ready": draw(st.integers(0, 9)) < 9,
            "cpu_milli": draw(st.integers(2, 6)) * 1000,
            "memory_bytes": 8,
            "pods": draw(st.integers(3, 6)),
            "gpus": draw(st.integers(1, 4)),
            "gpu_model": "h100",
            "gpu_memory_bytes": draw(st.sampled_from((40, 80))),
            "device_profile": "mig" if cut else "plugin",
            "mig_geometry": "40gb" if cut else "",
            "devices": draw(st.sampled_from(({}, {"amd.com/gpu": 8}))) | {"rdma/hca": draw(st.integers(0, 3))},
            "taints": draw(soft_taints),
            "labels": {"zone": "b" if rack == "r2" else draw(st.sampled_from("ab"))} | ({"rack": rack} if rack else {}),
        }
    )
    return empty_node(seen)


@st.composite
def roomy_clusters(draw: st.DrawFn) -> list[Node]:
    return [draw(roomy_nodes(f"n{number}")) for number in range(draw(st.integers(2, 7)))]


@st.composite
def small_needs(draw: st.DrawFn) -> Need:
    kind = draw(st.sampled_from(("cpu", "whole", "whole", "share", "cut")))
    return Need(
        cpu_milli=draw(st.sampled_from((500, 1000, 2000))),
        memory_bytes=1,
        gpus=draw(st.integers(1, 2)) if kind == "whole" else 0,
        gpu_milli=draw(st.sampled_from((300, 500))) if kind == "share" else 0,
        affinity=draw(st.sampled_from(AFFINITIES)) if draw(st.integers(0, 9)) == 9 else (),
        gpu_memory_bytes=60 if kind == "whole" and draw(st.integers(0, 5)) == 5 else 0,
        mig_profile=draw(st.sampled_from(PROFILES)) if kind == "cut" else "",
        devices=draw(seats) + ((("rdma/hca", 1),) if draw(st.integers(0, 5)) == 5 else ()),
        gpu_parts=draw(st.sampled_from((1, 1, 2, 3))) if kind in ("share", "cut") else 1,
        affinity_preferred=draw(preferences),
    )


@st.composite
def small_gangs(draw: st.DrawFn) -> tuple[RoleNeed, ...]:
    return tuple(
        RoleNeed(f"role-{number}", draw(st.integers(1, 3)), draw(small_needs()))
        for number in range(draw(st.integers(1, 2)))
    )


def beside_all(need: Need, host: RoleNeed, made: list[RoleNeed]) -> Need:
    """The need, without a GPU where the contract would refuse it: whole GPUs go together, all else goes alone."""
    using = [o.need for o in made if (o is host or o.beside == host.name) and o.need.total_gpu_milli]
    if not using or all(each.gpus for each in (need, *using)):
        return need
    return replace(need, gpus=0, gpu_milli=0, gpu_memory_bytes=0, mig_profile="", gpu_parts=1)


@st.composite
def related_gangs(draw: st.DrawFn) -> tuple[RoleNeed, ...]:
    """Gangs whose roles say how their pods lie to each other."""
    made: list[RoleNeed] = []
    group = draw(st.sampled_from(("", "group", NEAR)))
    levels, bound = draw(st.sampled_from((("rack",), ("zone",), ("rack", "zone")))), draw(st.booleans())
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("plain", "domain", "spread", "both", "beside")))
        role = RoleNeed(f"role-{number}", draw(st.integers(1, 4)), draw(small_needs()))
        hosts = [other for other in made if not other.beside]
        if kind == "beside" and hosts:
            host = draw(st.sampled_from(hosts))
            pods = host.replicas if host.spread else draw(st.integers(1, host.replicas))
            role = replace(role, beside=host.name, replicas=pods, need=beside_all(role.need, host, made))
        elif kind in ("domain", "both"):
            # Who goes near unasked is bound to nothing and spread over nothing.
            bound, kind = bound and group != NEAR, kind if group != NEAR else "domain"
            role = replace(role, levels=levels, bound=bound, group=group, spread="rack" if kind == "both" else "")
        elif kind == "spread":
            role = replace(role, spread=draw(st.sampled_from(("rack", "zone"))))
        made.append(role)
    return tuple(made)
