"""
Users' work that is stopped in part, or that may not be suspended, beside the real Job controller: what its failures
count, and who goes on.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy
from tests.e2e.live import configuration
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import may
from tests.kubernetes.live import live_on
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
KUEUE = "kueue.x-k8s.io/pod-group"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def users(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Users]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0, earmark_seconds=30))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body) as live:
        users = Users(live)
        users.apply("priorities")
        yield users


@pytest.mark.parametrize("pods", [1, 2])
async def test_a_job_in_waves_that_is_preempted_counts_no_failure(users: Users, pods: int) -> None:
    users.create(batch_job("waves", pods, gpus=8 // pods, seconds=8, completions=2 * pods, backoffLimit=pods - 1))
    await users.until(lambda: len(users.in_phase("waves", "Running")) == pods, "its first pods run")
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent", "waves")
    assert users.job("waves")["status"].get("failed", 0) == 0
    for name in ("urgent", "waves"):
        users.delete("job", name)


async def test_a_pod_group_of_kueue_goes_on_and_takes_a_replacement(users: Users) -> None:
    def member(name: str, exit_code: int, seconds: float) -> Json:
        notes = {f"{KUEUE}-total-count": "3", "tessera.io/simulate-exit-code": str(exit_code)}
        return pod(name, gpus=2, seconds=seconds, labels={f"{KUEUE}-name": "group"}, notes=notes)

    for name in ("a", "b"):
        users.create(member(name, 0, 30))
    users.create(member("c", 1, 2))
    await users.until_phase("c", "Failed")
    users.create(member("d", 0, 2))
    await users.until_succeeded("d", "a", "b")
    users.delete_pods("a", "b", "c", "d")


async def test_what_may_not_be_suspended_is_not_preempted(users: Users) -> None:
    """Last: it takes rights away. Eight pods survive no eviction of all of them."""
    role = users.api.get(f"{ROLES}/tessera-binder")
    rules = [rule for rule in role["rules"] if "jobs" not in rule["resources"]]
    users.api.patch(f"{ROLES}/tessera-binder", {"rules": rules})
    # The API server follows its own roles by a watch, and a binder that asked before would be told of the old right.
    await users.until(lambda: not may(users.live.plane, "binder", "batch/jobs", "patch", "lab"), "the right is gone")
    users.create(batch_job("eight", 8, seconds=15))
    await users.until(lambda: len(users.in_phase("eight", "Running")) == 8, "it runs")
    users.create(batch_job("urgent", gpus=8, seconds=1, template={"priorityClassName": "high"}))
    await users.until_complete("eight", "urgent")
    assert users.job("eight")["status"].get("failed", 0) == 0
    said = condition(users.pods("eight")[0], "tessera.io/NotHonoured")
    assert "the binder may not patch a Job here" in said["message"]
