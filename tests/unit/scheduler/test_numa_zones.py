"""Jobs on nodes whose kubelet keeps each pod within one NUMA zone: placed whole, told what hinders, refused never."""

import pytest
from pydantic import ValidationError

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera_schemas.job import Resources, Role
from tests.builders import GIB, admitted, job_spec, node_seen, role
from tests.rounds import Rounds, share

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
ZONES = ({"cpu": 32_000, GPU: 4, NIC: 4},) * 2


def cluster(nodes: int = 1, aligned: int | None = None, zones: tuple[dict[str, int], ...] = ZONES) -> Rounds:
    """Nodes of eight GPUs and eight NICs, of which the first `aligned` (all) keep pods within a zone."""
    seen = [
        node_seen(f"node-{at}", devices={NIC: 8}, zones=zones if aligned is None or at < aligned else ())
        for at in range(nodes)
    ]
    return Rounds(share("research", 64, None), nodes=seen)


def aligned(gpus: int, nics: int, replicas: int = 1, numa_policy: str = "") -> Role:
    """A role whose pods have so many GPUs and NICs each."""
    return role(gpus=gpus, replicas=replicas, devices={NIC: nics}, numa_policy=numa_policy)


def submit(world: Rounds, key: str, wanted: Role) -> None:
    world.commit(admitted(key, job_spec(wanted, name=key)))
    world.settle()


def why(world: Rounds, key: str) -> str:
    return str(world.job(key).reason.detail)


def test_a_gang_has_as_many_pods_on_a_node_as_its_zones_hold() -> None:
    world = cluster(nodes=2)
    submit(world, "gang", aligned(3, 3, replicas=4))
    places = [place.node for place in world.run("gang").all_placements]
    assert sorted(places) == ["node-0", "node-0", "node-1", "node-1"]
    submit(world, "small", aligned(2, 2))
    assert world.run("small") is None
    assert why(world, "small") == f"no NUMA zone of 2 nodes has 2 of {GPU}, 2 of {NIC} and 1 CPU; at most 1, 1 and 1"
    assert world.job("small").reason.numbers["nodes_short_of_one_numa_zone"] == 2
    world.finish("gang")
    world.settle()
    assert world.running("small")


def test_a_pod_that_no_empty_zone_holds_goes_where_no_kubelet_keeps_it_in_one() -> None:
    world = cluster(nodes=2, aligned=1)
    submit(world, "wide", aligned(8, 8))
    assert [place.node for place in world.run("wide").all_placements] == ["node-1"]
    submit(world, "other", aligned(8, 8))
    said = f"no NUMA zone of 1 node has 8 of {GPU}, 8 of {NIC} and 1 CPU; at most 4, 4 and 1"
    assert why(world, "other") == f"{said}, on 1 of them not even when empty"


def test_a_job_may_ask_for_one_zone_and_waits_for_such_a_node() -> None:
    world = cluster(aligned=0)
    submit(world, "picky", aligned(4, 4, numa_policy="single-numa-node"))
    assert world.run("picky") is None
    assert world.job("picky").reason.numbers["nodes_that_align_no_numa_zone"] == 1
    world.commit(node_seen("node-0", devices={NIC: 8}, zones=ZONES))
    world.settle()
    assert world.running("picky")


def test_runs_from_before_the_zones_were_known_are_in_them() -> None:
    world = cluster(aligned=0)
    submit(world, "before", aligned(3, 3))
    world.commit(node_seen("node-0", devices={NIC: 8}, zones=ZONES))
    submit(world, "four", aligned(4, 4))
    submit(world, "two", aligned(2, 2))
    assert world.running("before", "four")
    assert world.run("two") is None


def test_a_restored_state_has_the_same_zones_and_hashes_alike() -> None:
    world = cluster()
    submit(world, "one", aligned(3, 3))
    restored = load(iter(list(dump(world.state))))
    assert StateHash().of(restored) == StateHash().of(world.state)
    assert restored.nodes.get("node-0") == world.state.nodes.get("node-0")
    assert restored.nodes.get("node-0").in_zones == ((("cpu", 1000), (GPU, 3), (NIC, 3)),)


def test_zones_that_change_move_nobody() -> None:
    world = cluster()
    submit(world, "one", aligned(4, 4, replicas=2))
    world.commit(node_seen("node-0", devices={NIC: 8}, zones=({GPU: 2, NIC: 2},) * 4))
    assert world.running("one")
    world.finish("one")
    submit(world, "four", aligned(4, 4))
    assert world.run("four") is None


@pytest.mark.parametrize(
    "wanted",
    [
        {"gpu_milli": 500},
        {"gpus": 1, "cpu_milli": 1500},
        {"gpus": 1, "cpu_limit_milli": 4000},
        {"gpus": 1, "memory_limit_bytes": 2 * GIB},
        {"mig_profile": "1g.10gb"},
    ],
)
def test_one_zone_is_asked_for_only_where_a_kubelet_could_give_it(wanted: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="numa_policy"):
        Resources(**{"cpu_milli": 2000, "memory_bytes": GIB, "numa_policy": "single-numa-node", **wanted})
