"""A copy of a group of a submitted job starts again on a real API server, whose rules of names and finalizers hold."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera_schemas.cluster.gang_groups import GroupRestart, RoleGroup
from tessera_schemas.cluster.labels import RANK_LABEL, RUN_LABEL
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAIR = RoleGroup(name="pair", pods={"worker": 2}, restart=GroupRestart(max_restarts=2, backoff_seconds=0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "gpu", gpus=8)
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


def by_rank(users: Users, run: str, *phases: str) -> dict[int, Any]:
    return {int(pod["metadata"]["labels"][RANK_LABEL]): pod for pod in users.labelled(f"{RUN_LABEL}={run}", *phases)}


async def test_a_pair_starts_again_under_its_names_and_the_other_goes_on(live: KubernetesLive) -> None:
    users = Users(live)
    sent = await live.submit(job("pairs", replicas=4, seconds=3600, exit_code=1, groups=(PAIR,)))
    run = f"{sent.job_id}-1"
    await live.until_phase(sent.job_id, "running")
    before = by_rank(users, run)
    for times in (1, 2):
        known = {rank: pod["metadata"]["uid"] for rank, pod in by_rank(users, run).items()}
        users.fail(by_rank(users, run)[3])

        def again(known: dict[int, str] = known) -> bool:
            there = by_rank(users, run, "Running")
            return len(there) == 4 and all(there[rank]["metadata"]["uid"] != known[rank] for rank in (2, 3))

        await users.until(again, f"the pair runs again, {times}")
    after = by_rank(users, run)
    same = [rank for rank in before if before[rank]["metadata"]["uid"] == after[rank]["metadata"]["uid"]]
    assert same == [0, 1]
    assert {rank: pod["metadata"]["name"] for rank, pod in after.items()} == {
        rank: f"{run}-{rank}" for rank in range(4)
    }
    assert [after[rank]["spec"]["nodeName"] for rank in range(4)] == [
        before[rank]["spec"]["nodeName"] for rank in range(4)
    ]
    users.fail(after[3])
    await live.until_ended(sent.job_id)
    assert live.phase(sent.job_id) == "failed", "its third failure is the job's, which says nothing of retries"
    await assert_all_is_well(live)
