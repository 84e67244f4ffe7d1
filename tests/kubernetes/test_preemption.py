"""Preemption and reclaim on a real API server: tests of `tests/e2e`, whose pods real controllers look after here."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import GPUS, configuration
from tests.e2e.preemption_suite import (  # noqa: F401
    test_lent_quota_is_taken_back_and_every_plan_can_be_made_again,
    test_with_preemption_alone_the_urgent_job_runs_and_its_victim_comes_back,
)
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """A queue that owns the whole cluster and lends it to another one."""
    own_plane.add_nodes(GPUS // 8, "gpu")
    quota = Quota(resource="gpu_milli", nominal=GPUS * 1000)
    owner = Queue(name="default", parent="all", quotas=(quota,))
    queues = (Queue(name="all"), owner, Queue(name="guest", parent="all"))
    body = configuration(queues=queues, policy=Policy(preset="fair", min_runtime_seconds=0))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body, layout=SEPARATE) as live:
        yield live


@pytest.mark.parametrize("word", [{"minAvailable": 2}, {"maxUnavailable": 1}], ids=["all of them", "not of Jobs"])
async def test_pods_that_their_budget_never_lets_go_do_not_borrow_until_it_is_gone(
    live: KubernetesLive, word: dict[str, int]
) -> None:
    """Of pods of a Job Kubernetes counts only `minAvailable`: with `maxUnavailable` it allows no disruption at all."""
    users, labels = Users(live), {"app": "kept"}
    budget = {"selector": {"matchLabels": labels}, **word}
    users.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"}, "spec": budget}
    )
    users.create(batch_job("kept", 2, gpus=1, seconds=1, labels={**labels, "tessera.io/queue": "guest"}))

    def told() -> list[str]:
        return [users.describe(each) for each in users.pods("kept")]

    await users.until(
        lambda: (said := told()) and all("disruption budgets change: budget keep (" in one for one in said), "told"
    )
    users.delete("poddisruptionbudget", "keep")
    await users.until_complete("kept")
    users.delete("job", "kept")
