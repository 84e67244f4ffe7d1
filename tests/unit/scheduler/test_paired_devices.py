"""GPUs with their NICs: pairs and aligned sets of devices of two drivers, and what hinders them."""

from collections import Counter

from tessera.client.sending.submitting import claims_of
from tessera_schemas.cluster.device_claims import DeviceClaim
from tessera_schemas.cluster.device_layouts import TakenDevice
from tests.builders import admitted, job_spec
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    NUMA_NODE,
    PCIE_ROOT,
    claiming,
    class_seen,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
)
from tests.rounds import Rounds, share

LAYOUT = gpus_with_nics()
GPUS, NICS = "device.driver == 'gpu'", "device.driver == 'nic'"
PAIRS = (f"{DRIVER}+{NIC_DRIVER}:4",)
SETS = (f"{DRIVER}:4", f"{NIC_DRIVER}:4")


def cluster(*taken: str, nodes: int = 1) -> Rounds:
    """Nodes of eight GPUs and eight NICs, on which others have these devices (`gpu-0`)."""
    drivers = {"gpu": DRIVER, "nic": NIC_DRIVER}
    named = [
        offering(
            f"node-{at}",
            LAYOUT,
            8,
            taken=tuple(TakenDevice(device=f"{drivers[name[:3]]}/node-{at}/{name}") for name in taken),
        )
        for at in range(nodes)
    ]
    known = [layout_seen(LAYOUT), class_seen(DRIVER, GPUS), class_seen(NIC_DRIVER, NICS)]
    world = Rounds(share("research", 64, None), nodes=[*known, *named])
    world.commit(selected(LAYOUT, 0xFF, GPUS), selected(LAYOUT, 0xFF00, NICS))
    return world


def submit(world: Rounds, key: str, device: tuple[str, ...], match: str | None, replicas: int = 1) -> None:
    claims = tuple(DeviceClaim.model_validate(each) for each in claims_of(device, match))
    world.commit(admitted(key, job_spec(claiming(*claims, replicas=replicas), name=key)))
    world.settle()


def values(world: Rounds, key: str, attribute: str) -> list[Counter[int]]:
    """For each pod how many of its devices have each value of the attribute."""
    by_name, run = {each.name: each for each in LAYOUT.devices}, world.run(key)
    placed = () if run is None else run.all_placements
    return [Counter(by_name[each.device].same[attribute] for each in place.drawn) for place in placed]


def why(world: Rounds, key: str) -> str:
    return str(world.job(key).reason.detail)


def test_four_gpus_and_four_nics_are_four_pairs_of_one_pcie_root_each() -> None:
    world = cluster()
    submit(world, "pairs", PAIRS, PCIE_ROOT, replicas=2)
    both = values(world, "pairs", PCIE_ROOT)
    assert [sorted(each.values()) for each in both] == [[2] * 4, [2] * 4]
    assert both[0].keys().isdisjoint(both[1])


def test_pairs_are_found_among_gpus_and_nics_that_have_lost_their_partners() -> None:
    world = cluster("gpu-0", "nic-1", "gpu-4", "nic-7")
    submit(world, "pairs", PAIRS, PCIE_ROOT)
    (roots,) = values(world, "pairs", PCIE_ROOT)
    assert roots == Counter({2: 2, 3: 2, 5: 2, 6: 2})


def test_a_set_of_one_numa_node_is_found_on_the_numa_node_that_has_it() -> None:
    world = cluster("gpu-0", "nic-2")
    submit(world, "aligned", SETS, NUMA_NODE)
    assert values(world, "aligned", NUMA_NODE) == [Counter({9: 8})]


def test_a_job_hears_which_attribute_keeps_its_devices_apart_and_on_how_many_nodes() -> None:
    world = cluster("gpu-0", "nic-4", nodes=3)
    submit(world, "aligned", SETS, NUMA_NODE)
    assert values(world, "aligned", NUMA_NODE) == []
    assert f"no set with one {NUMA_NODE} on 3 nodes" in why(world, "aligned")
    submit(world, "unaligned", SETS, None)
    assert [each.total() for each in values(world, "unaligned", NUMA_NODE)] == [8]


def test_pairs_that_are_too_few_are_told_by_the_attribute() -> None:
    world = cluster("gpu-0", "gpu-1", "gpu-2", "nic-3", "nic-4")
    submit(world, "pairs", PAIRS, PCIE_ROOT)
    assert values(world, "pairs", PCIE_ROOT) == []
    assert f"no set with one {PCIE_ROOT} on 1 node" in why(world, "pairs")


def test_devices_that_are_short_by_themselves_are_not_blamed_on_an_attribute() -> None:
    world = cluster(*(f"gpu-{at}" for at in range(5)))
    submit(world, "aligned", SETS, NUMA_NODE)
    assert "5 taken" in why(world, "aligned")
    assert "no set with" not in why(world, "aligned")
