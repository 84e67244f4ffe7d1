"""Whatever is placed where: a pod gets exactly the devices of its slots, and a node gives each once and of one kind."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.binder.decide.devices import NoDevice, at_bind
from tessera.binder.decide.devices import given as devices_given
from tessera.domain.devices.mig.instances import geometry_of, layout
from tessera.domain.devices.resources import Need, Node, RoleNeed, is_seat
from tessera.engine.placement.gangs import FreeCapacity
from tessera_local.cluster.machines.capacity import NodeUse, request_of
from tessera_schemas.cluster.devices import SERVES
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.job import Resources
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.property.happenings import Happenings
from tests.property.shapes import clusters, gangs, small_gangs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CARD_MIB = 80_000


def asked(need: Need) -> Resources:
    return Resources(
        cpu_milli=need.cpu_milli,
        memory_bytes=need.memory_bytes,
        gpus=need.gpus,
        gpu_milli=need.gpu_milli,
        mig_profile=need.mig_profile,
        gpu_parts=need.gpu_parts,
        devices={name: count for name, count in need.devices if not is_seat(name)},
    )


def placed(there: list[Node], wanted: list[tuple[RoleNeed, ...]]) -> list[tuple[Node, Need, Placement]]:
    """All that found a place, one gang after the other."""
    room, named = FreeCapacity(there), {node.name: node for node in there}
    found: list[tuple[Node, Need, Placement]] = []
    for gang in wanted:
        verdict = room.place(gang)
        if not isinstance(verdict, Reason):
            needs = {role.name: role.need for role in gang}
            found += [(named[place.node], needs[place.role], place) for place in verdict]
    return found


def cards_shown(node: Node, need: Need, place: Placement) -> list[str]:
    """The UUIDs that the pod names, wherever its profile has them; none where nobody made the instance it asks for."""
    if need.mig_profile and not node.mig_instances:  # as ledgers of before instances have nodes
        with pytest.raises(NoDevice, match="nobody made instances"):
            devices_given(asked(need), place, node)
        return []
    env = devices_given(asked(need), place, node).env.get("NVIDIA_VISIBLE_DEVICES", "")
    notes = at_bind(place, node, NOW).get("hami.io/vgpu-devices-to-allocate", "")
    return [c for c in env.split(",") if c.startswith("GPU-")] + [c.split(",")[0] for c in notes.split(":") if "," in c]


GANGS = st.lists(st.one_of(gangs(), small_gangs()), max_size=6)


@given(clusters(), GANGS)
def test_a_pod_names_exactly_the_cards_of_its_slots(there: list[Node], wanted: list[tuple[RoleNeed, ...]]) -> None:
    there = [replace(node, gpu_memory_bytes=CARD_MIB * 2**20) for node in there]
    for node, need, place in placed(there, wanted):
        expected = [node.gpu_uuids[slot] for slot in place.devices] if node.gpu_uuids else []
        assert cards_shown(node, need, place) == expected


@given(clusters(), GANGS)
def test_a_node_serves_kinds_of_one_profile_and_offers_what_is_asked_of_it(
    there: list[Node], wanted: list[tuple[RoleNeed, ...]]
) -> None:
    there = [replace(node, gpu_memory_bytes=CARD_MIB * 2**20) for node in there]
    amounts: dict[str, Counter[str]] = {node.name: Counter() for node in there}
    for node, need, place in placed(there, wanted):
        assert asked(need).kind in {None, *SERVES[node.device_profile]}
        amounts[node.name].update(devices_given(asked(need), place, node).amounts)
    for node in there:
        counted = amounts[node.name]
        if node.device_profile != "hami":
            assert counted["nvidia.com/gpu"] <= node.gpus
        for profile, count in node.mig_instances:
            assert counted[f"nvidia.com/mig-{profile}"] <= count


@given(clusters(), GANGS)
def test_what_shares_a_card_of_hamis_never_has_more_than_the_card(
    there: list[Node], wanted: list[tuple[RoleNeed, ...]]
) -> None:
    there = [replace(node, gpu_memory_bytes=CARD_MIB * 2**20) for node in there if node.device_profile == "hami"]
    memory: Counter[tuple[str, str]] = Counter()
    cores: Counter[tuple[str, str]] = Counter()
    for node, _, place in placed(there, wanted):
        for card in at_bind(place, node, NOW).get("hami.io/vgpu-devices-to-allocate", "").split(":"):
            if "," in card:
                uuid, _, mib, percent = card.split(",")
                memory[node.name, uuid] += int(mib)
                cores[node.name, uuid] += int(percent)
    assert all(mib <= CARD_MIB for mib in memory.values())
    assert all(percent <= 100 for percent in cores.values())


@given(clusters(), GANGS)
def test_the_simulated_kubelet_takes_whatever_was_placed(there: list[Node], wanted: list[tuple[RoleNeed, ...]]) -> None:
    """A node whose GPUs could be cut in any way is none that a kubelet knows; HAMi's plugin is not simulated."""
    there = [
        node for node in there if node.device_profile != "hami" and not (node.mig_geometry and not node.mig_instances)
    ]
    uses = {node.name: use_of(node) for node in there}
    for node, need, place in placed(there, wanted):
        uses[node.name].take(request_of(pod(node, need, place)))


def use_of(node: Node) -> NodeUse:
    offered = 0 if node.gpu_uuids or node.mig_instances else node.gpus
    sizes = {"cpu": f"{node.cpu_milli}m", "memory": str(node.memory_bytes), "pods": str(node.pods)}
    sizes |= {"nvidia.com/gpu": str(offered)} | {name: str(count) for name, count in node.devices}
    sizes |= {f"nvidia.com/mig-{profile}": str(count) for profile, count in node.mig_instances}
    notes = {"tessera.io/device-profile": node.device_profile, "tessera.io/gpu-uuids": ",".join(node.gpu_uuids)}
    use = NodeUse()
    use.resize({"metadata": {"name": node.name, "annotations": notes}, "status": {"allocatable": sizes}})
    return use


def pod(node: Node, need: Need, place: Placement) -> dict[str, object]:
    gives = devices_given(asked(need), place, node)
    amounts = {"cpu": f"{need.cpu_milli}m", "memory": str(need.memory_bytes)}
    amounts |= {name: str(count) for name, count in gives.amounts.items()}
    env = [{"name": name, "value": value} for name, value in gives.env.items()]
    container = {"name": "main", "env": env, "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"annotations": at_bind(place, node, NOW)}, "spec": {"containers": [container]}}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_slots_mean_the_same_devices_as_long_as_a_run_holds_some(seed: int) -> None:
    life, meant = Happenings(seed), dict[tuple[str, str], tuple[object, ...]]()
    for _ in range(25):
        life.go_on()
        for run in life.state.runs.values():
            for node in life.state.nodes.found(sorted({place.node for place in run.places if place.devices})):
                assert meant.setdefault((run.run_id, node.name), meaning(node)) == meaning(node)


def meaning(node: Node) -> tuple[object, ...]:
    return node.device_profile, node.gpu_uuids, node.mig_instances


# -- layouts of instances -----------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(GEOMETRIES)), st.integers(0, 10_000), st.integers(1, 4))
def test_a_layout_puts_every_instance_at_a_legal_position_and_wastes_few_gpus(
    geometry: str, seed: int, gpus: int
) -> None:
    shapes, chance = GEOMETRIES[geometry].profiles, Random(seed)
    made: Counter[str] = Counter()
    for _ in range(gpus):
        made.update(cut_by_chance(geometry, chance))
    found = layout(geometry, tuple(sorted(made.items())))
    assert Counter(profile for gpu in found for profile, _ in gpu) == made
    assert len(found) <= gpus + (gpus > 1)
    for gpu in found:
        taken = [at for profile, start in gpu for at in range(start, start + shapes[profile].size)]
        assert len(set(taken)) == len(taken)
        assert all(start in shapes[profile].starts for profile, start in gpu)


def cut_by_chance(geometry: str, chance: Random) -> list[str]:
    """The profiles of a GPU that is cut until nothing more fits."""
    places = [(p, s, shape.size) for p, shape in GEOMETRIES[geometry].profiles.items() for s in shape.starts]
    chance.shuffle(places)
    taken: set[int] = set()
    made = []
    for profile, start, size in places:
        if not taken & set(range(start, start + size)):
            taken |= set(range(start, start + size))
            made.append(profile)
    return made


@given(st.sampled_from(sorted(GEOMETRIES)), st.integers(0, 10_000))
def test_a_kind_of_gpu_is_known_by_its_profiles_and_its_memory(geometry: str, seed: int) -> None:
    profiles = frozenset(cut_by_chance(geometry, Random(seed)))
    gib = int(geometry.removesuffix("gb")) * 2**30
    assert geometry_of(profiles, geometry, 0) == geometry
    assert geometry_of(profiles, "", gib) == geometry
    assert geometry_of(profiles, "", 0) in (geometry, None)
