"""Parks of simulated worlds: what jobs ask for because of one can be had there."""

from collections import Counter
from random import Random

import pytest

from tessera.testkit.sim.devices.asked import NICS
from tessera.testkit.sim.devices.drivers import GPU_DRIVER, NIC_DRIVER
from tessera.testkit.sim.devices.parks import GPUS, MIG, PARKS, ParkName, rows_of, suited
from tessera.testkit.sim.devices.zones import ZONE
from tessera.testkit.sim.workload import job_spec, submit_job
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.commands import SubmitJob
from tessera_schemas.job import JobSpec

PARKED = [park for park in PARKS if park]


def drawn(park: ParkName, held: bool = False) -> list[tuple[JobSpec, JobSpec]]:
    """Jobs as they are drawn, and as they are sent in the park."""
    random, found = Random(1), []
    for _ in range(1_000):
        before = submit_job("main", 1.0, "red", "key", job_spec(random), held=held)
        after = suited(park, before)
        sent = SubmitJob.model_validate_json(after.data)
        assert (after.spec, after.at, after.tenant, after.key) == (sent.spec, before.at, "red", sent.key)
        assert sent.held is held
        found.append((before.spec, sent.spec))
    return found


def test_jobs_stay_as_they_were_drawn_in_a_world_without_a_park():
    assert all(before == after for before, after in drawn("", held=True))


@pytest.mark.parametrize("park", PARKED)
def test_a_park_changes_resources_of_some_jobs_and_nothing_else(park: ParkName) -> None:
    found = drawn(park)
    assert 10 < sum(before != after for before, after in found) < 600
    for before, after in found:
        (was,), (now,) = before.roles, after.roles
        assert after.model_copy(update={"roles": ()}) == before.model_copy(update={"roles": ()})
        assert now.model_copy(update={"resources": was.resources}) == was


def test_every_share_is_a_replica_or_fits_the_nodes_of_all_worlds():
    sizes = {1000 // row.replicas: row.device_profile for row in rows_of("replicas")}
    asked = [spec.roles[0].resources for _, spec in drawn("replicas")]
    shares = {(each.gpu_milli, each.isolation) for each in asked}
    assert shares == {(0, "none"), (250, "none"), (500, "compute")}
    assert sizes == {250: "time-slicing", 500: "mps"}


def test_every_pod_that_asks_for_a_zone_or_its_cards_fits_one_zone_of_the_empty_node():
    roles = [role for _, spec in drawn("zones") for role in spec.roles]
    asked = [role for role in roles if role.resources.numa_policy or role.resources.devices]
    assert {bool(role.resources.numa_policy) for role in asked} == {True, False}
    for role in asked:
        amounts = {GPU_RESOURCE: role.resources.gpus, "cpu": role.cpu_milli // 1000, **role.resources.devices}
        assert (role.replicas, role.cpu_milli % 1000) == (1, 0)
        assert all(amount <= ZONE[name] for name, amount in amounts.items()), role


def test_two_drivers_have_a_pool_of_one_name_and_every_pod_finds_both_of_their_devices_there():
    sizes = {driver.name: driver.cards for driver in (GPU_DRIVER, NIC_DRIVER)}
    claimed = Counter[str]()
    for _, spec in drawn("published"):
        (role,) = spec.roles
        if role.resources.claims:
            assert (role.replicas, len(role.resources.claims)) == (1, 1)
            assert role.resources.gpus <= sizes[GPUS]
            (choice,) = role.resources.claims[0].requests[0].choices
            claimed[choice.device_class] += 1
            assert choice.count <= sizes.get(choice.device_class, 2 * sizes[GPUS])
    assert claimed.keys() == {NICS, GPUS, MIG}
    (row,) = rows_of("published")
    assert (row.gpus, sizes) == (0, {GPUS: 4, NICS: 2})
