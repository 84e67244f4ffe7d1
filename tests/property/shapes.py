"""Random clusters and gangs, small enough that they often do not fit."""

from hypothesis import strategies as st

from tessera.domain.resources import Need, Node, RoleNeed, empty_node
from tessera_schemas.facts import NodeSeen

MODELS = ("a100", "h100")


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    profile = draw(st.sampled_from(("whole", "shares", "plugin")))
    tainted = draw(st.booleans()) and draw(st.booleans())
    seen = NodeSeen.model_validate(
        {
            "kind": "node_seen",
            "name": name,
            "ready": draw(st.integers(0, 5)) > 0,
            "cpu_milli": draw(st.integers(0, 8)) * 1000,
            "memory_bytes": draw(st.integers(0, 8)),
            "pods": draw(st.integers(0, 6)),
            "gpus": draw(st.integers(0, 4)),
            "gpu_model": draw(st.sampled_from(MODELS)),
            "device_profile": profile,
            "labels": {"zone": draw(st.sampled_from("ab"))},
            "taints": [{"key": "own", "effect": "NoSchedule"}] if tainted else [],
        }
    )
    return empty_node(seen)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [draw(nodes(f"n{number}")) for number in range(draw(st.integers(0, 5)))]


@st.composite
def needs(draw: st.DrawFn) -> Need:
    gpus = draw(st.sampled_from((0, 0, 1, 2, 4)))
    return Need(
        cpu_milli=draw(st.integers(1, 4)) * 1000,
        memory_bytes=draw(st.integers(1, 4)),
        gpus=gpus,
        gpu_milli=0 if gpus else draw(st.sampled_from((0, 100, 500, 999))),
        gpu_models=tuple(draw(st.sets(st.sampled_from(MODELS), max_size=1))),
        node_selector=(("zone", "a"),) if draw(st.integers(0, 4)) == 0 else (),
        tolerations=(("own", "", ""),) if draw(st.booleans()) else (),
    )


@st.composite
def gangs(draw: st.DrawFn) -> tuple[RoleNeed, ...]:
    return tuple(
        RoleNeed(f"role-{number}", draw(st.integers(1, 4)), draw(needs())) for number in range(draw(st.integers(1, 3)))
    )
