"""A run whose pods had devices by claims is absent once these are free, and not before."""

from dataclasses import replace

import pytest

from tessera.domain.entities import Run
from tessera.reclamation.absence.decide import claims_devices, uids_in_use
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL
from tessera_schemas.facts import CancelRequested
from tests.builders import admitted, job_spec, role
from tests.unit.binder.binder_builders import run
from tests.unit.binder.claim_builders import DRIVER, drawn
from tests.unit.binder.claim_worlds import claims, with_claims, world_of_devices
from tests.unit.binder.cluster_world import World

RESULTS = {"devices": {"results": []}}


HAD = {"devices": {"results": [{"driver": DRIVER, "pool": "node-a", "device": "gpu-0"}]}}


def claim(*uids: str, allocated: bool = True) -> Json:
    users = {"reservedFor": [{"uid": uid} for uid in uids]} if uids else {}
    return {"status": ({"allocation": RESULTS} if allocated else {}) | users}


def permitted(*uids: str) -> Run:
    """A run with a pod for each of these, of which the first was given a device."""
    plain = run(job_spec(role(replicas=len(uids))))
    (first, *rest) = plain.placements
    return replace(plain, placements=(replace(first, drawn=(drawn(),)), *rest), uids=uids)


def test_only_a_claim_with_devices_is_in_use_by_its_pods():
    found = [claim("a", "b", "z"), claim("c", allocated=False), claim(), {}, {"status": None}]
    assert uids_in_use(permitted("a", "b", "c"), found) == {"a", "b"}


@pytest.mark.parametrize("mark", ["labels", "annotations"])
def test_the_pod_with_which_a_claim_was_allocated_has_its_devices_until_the_last_pod_leaves_it(mark: str):
    of = permitted("a", "b")
    used = {"metadata": {mark: {RUN_LABEL: of.run_id}}, "status": {"allocation": HAD, "reservedFor": [{"uid": "z"}]}}
    assert uids_in_use(of, [used]) == {"a"}
    assert uids_in_use(of, [used | {"metadata": {mark: {RUN_LABEL: "another-1"}}}]) == set()
    assert uids_in_use(of, [used | {"status": {}}]) == set()


def test_a_run_without_drawn_devices_asks_for_no_claims():
    plain = run(job_spec(role(replicas=2)))
    (first, *rest) = plain.placements
    assert not claims_devices(plain)
    assert claims_devices(replace(plain, placements=(replace(first, drawn=(drawn(),)), *rest)))


@pytest.mark.parametrize("how", ["cancelled", "succeeded"])
async def test_devices_are_kept_until_the_claims_of_the_run_are_free(how: str) -> None:
    async with world_of_devices() as world:
        release = hold_claims(world)
        fact = admitted("k1", with_claims(seconds=600 if how == "cancelled" else 5))
        await world.commit(fact)
        await world.run(4)
        if how == "cancelled":
            await world.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant="lab"))
        await world.run(30)
        assert "released" not in world.kinds()
        assert claims(world)
        release()
        await world.run(5)
        assert "released" in world.kinds()
        assert world.job(fact.job_id).phase == how


async def test_pods_of_a_gang_are_released_one_by_one_as_their_claims_are() -> None:
    async with world_of_devices() as world:
        release = hold_claims(world)
        fact = admitted("k1", with_claims(2, seconds=5, rank_seconds=600))
        await world.commit(fact)
        await world.run(20)
        assert world.job(fact.job_id).phase == "running"
        assert not [fact for fact in world.said("run_absent") if fact.ranks]
        release()
        await world.run(15)
        assert [fact.ranks for fact in world.said("run_absent")] == [(0,)]


def hold_claims(world: World):
    """Kubernetes' controller of claims stands still until the function that is returned is called."""
    store, waiting = world.core._store, list[str]()
    free = store._release_claims
    store._release_claims = waiting.append  # type: ignore[method-assign]

    def release() -> None:
        store._release_claims = free  # type: ignore[method-assign]
        for uid in waiting:
            free(uid)

    return release
