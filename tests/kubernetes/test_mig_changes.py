"""
Changes of MIG geometry on a real API server, where the binder has the chart's rights alone.

The mig-manager is the test: it answers the label, and makes the allocatable instances of the node what they then are.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera.domain.entities import MigChange
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL, MIG_RESOURCE_PREFIX
from tessera_schemas.cluster.pools import MigChanges, MigConfig, Pool
from tessera_schemas.job import JobSpec
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import deployed
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users_objects import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = "mig-0"
SMALL, LARGE = "all-1g.10gb", "all-3g.40gb"
GIVES = {SMALL: {"1g.10gb": 7}, LARGE: {"3g.40gb": 2}}
CONFIGS = tuple(MigConfig(name=name, gives=gives) for name, gives in GIVES.items())
ALLOWED = MigChanges(configs=CONFIGS, change_seconds=1, interval_seconds=1)


def instances(config: str) -> dict[str, str]:
    """What the device plugin offers then; of what it no longer has it offers none."""
    offered = {profile: 0 for gives in GIVES.values() for profile in gives} | GIVES[config]
    return {MIG_RESOURCE_PREFIX + profile: str(count) for profile, count in offered.items()}


class FakeMigManager:
    """Acts on each new value of the label: `fails` says of the next ones, in order, whether it cannot do it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.api()
        self._done = str(self.node()["metadata"]["labels"][MIG_CONFIG_LABEL])
        self.fails = deque[bool]()
        self.asked: list[str] = []

    def node(self) -> Json:
        return self._api.get(f"/api/v1/nodes/{NODE}")

    def says(self, state: str) -> None:
        self._api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {MIG_CONFIG_STATE_LABEL: state}}})

    async def serve(self) -> None:
        while True:
            labels = self.node()["metadata"]["labels"]
            if labels[MIG_CONFIG_LABEL] != self._done:
                assert MIG_CONFIG_STATE_LABEL not in labels, "the answer to the last question is there still"
                self._done = labels[MIG_CONFIG_LABEL]
                self.asked.append(self._done)
                self.says("pending")
                await asyncio.sleep(0.5)
                if self.fails and self.fails.popleft():
                    self.says("failed")
                else:
                    sizes = instances(self._done)
                    change = {"status": {"capacity": sizes, "allocatable": sizes}}
                    self._api.patch(f"/api/v1/nodes/{NODE}/status", change)
                    self.says("success")
            await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """One node of large instances, which reclamation may have cut into small ones."""
    labels = {MIG_CONFIG_LABEL: LARGE, MIG_CONFIG_STATE_LABEL: "success", "nvidia.com/gpu.memory": "81920"}
    own_plane.add_nodes(1, "mig", gpus=0, cpu="16", labels=labels, more=instances(LARGE))
    body = configuration(pools=(Pool(name="default", device_profile="mig", mig_changes=ALLOWED),))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body) as live:
        deployed.deploy(own_plane, migChanges=True)
        await eventually(lambda: offered(live) == {"3g.40gb": 2}, "the ledger knows the large instances")
        yield live


@pytest_asyncio.fixture(loop_scope="module")
async def mig_manager(live: KubernetesLive) -> AsyncIterator[FakeMigManager]:
    manager = FakeMigManager(live.plane)
    serving = asyncio.create_task(manager.serve())
    yield manager
    assert not serving.done(), serving
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def offered(live: KubernetesLive) -> dict[str, int]:
    """Instances of the node, if it takes pods."""
    node = live.state.nodes.get(NODE)
    return dict(node.mig_instances) if node is not None and node.ready and node.trouble is None else {}


def change(live: KubernetesLive) -> MigChange:
    found = live.state.mig_changes.get(NODE)
    assert found is not None
    return found


def instance_job(name: str, profile: str, seconds: float = 0.5) -> JobSpec:
    spec = job(name, gpus=0, seconds=seconds)
    asked = spec.roles[0].resources.model_copy(update={"mig_profile": profile})
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"resources": asked}),)})


async def test_the_binder_may_patch_nodes_and_no_more_and_nobody_else_may(live: KubernetesLive) -> None:
    def may(service: str, resource: str, verb: str) -> bool:
        return deployed.may(live.plane, service, resource, verb, "")

    await eventually(lambda: may("binder", "nodes", "patch"), "the chart's rights are in force")
    others = [(what, verb) for what in ("nodes", "nodes/status") for verb in ("update", "delete", "create")]
    assert not any(may("binder", *each) for each in [*others, ("nodes/status", "patch")])
    assert not any(may(service, "nodes", "patch") for service in ("reclamation", "scheduler", "gateway"))


async def test_a_job_that_waits_for_an_instance_starts_once_the_node_was_cut(
    live: KubernetesLive, mig_manager: FakeMigManager
) -> None:
    done = await live.submit(instance_job("small", "1g.10gb"))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    assert mig_manager.asked == [SMALL]
    assert offered(live) == {"1g.10gb": 7}
    assert (change(live).job_id, change(live).config, change(live).times) == (done.job_id, SMALL, 0)
    assert change(live).took_ms >= 500, "the mig-manager's half second is part of it"


async def test_a_change_that_failed_is_taken_back_and_the_node_serves_as_before(
    live: KubernetesLive, mig_manager: FakeMigManager
) -> None:
    mig_manager.fails.append(True)
    waits = await live.submit(instance_job("large", "3g.40gb"), answer_seconds=0)
    await eventually(lambda: mig_manager.asked == [LARGE, SMALL], "it is asked for the former instances")
    await eventually(lambda: change(live).ended_ts > 0, "the change is over")
    assert (change(live).times, change(live).undo, change(live).config) == (1, True, SMALL)
    await eventually(lambda: offered(live) == {"1g.10gb": 7}, "the node takes pods again")
    done = await live.submit(instance_job("next", "1g.10gb"))
    await live.until_ended(done.job_id)
    assert (live.phase(done.job_id), live.phase(waits.job_id)) == ("succeeded", "queued")
    assert mig_manager.asked == [LARGE, SMALL], "the node is left alone for minutes"
    await live.clients["lab"].cancel(waits.job_id)
    await live.until_ended(waits.job_id)
    await assert_all_is_well(live)
