"""
Statuses as kubelets and other programs leave them, stored by a real API server: null times, lists and states that are
missing, words that nobody knows. None of them stops a binder, at once or at its next start, and other work goes on.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.live import configuration, eventually, job
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import NAMESPACE, Users
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
IMAGE: Json = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
UNKNOWN = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container could not be located"}
STATUSES: dict[str, Json] = {
    "no end": {"phase": "Failed", "containerStatuses": [IMAGE | {"state": {"terminated": UNKNOWN}}]},
    "no start of the pod": {"phase": "Failed", "startTime": None, "reason": "Evicted"},
    "no containers": {"phase": "Failed", "containerStatuses": None, "initContainerStatuses": None},
    "a container in no state": {"phase": "Failed", "containerStatuses": [IMAGE | {"state": {}}]},
    "no start of a container": {"phase": "Running", "containerStatuses": [IMAGE | {"state": {"running": {}}}]},
    "no conditions": {"phase": "Failed", "conditions": None},
    "a condition of no time": {"phase": "Failed", "conditions": [{"type": "Odd", "status": "Maybe"}]},
    "an unknown phase": {"phase": "Hibernating"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(2, "gpu", gpus=8, cpu="64")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest.mark.parametrize("said", STATUSES)
async def test_no_status_that_the_api_server_stores_stops_the_binder(live: KubernetesLive, said: str) -> None:
    users, name, pid = Users(live), f"odd-{list(STATUSES).index(said)}", live.platform.pid("binder")
    users.create(batch_job(name, seconds=600))
    odd = await users.until_running(name)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{odd['metadata']['name']}"
    users.api.patch(f"{path}/status", {"status": STATUSES[said]})  # the API server refuses none of them
    after = await live.submit(job(f"after-{name}"))
    await live.until_ended(after.job_id)
    assert live.platform.pid("binder") == pid
    await live.platform.restart("binder")  # the odd object is the first thing that it reads
    await live.until_ready("binder")
    again = await live.submit(job(f"again-{name}"))
    await live.until_ended(again.job_id)
    users.delete("job", name)
    await eventually(lambda: users.pods(name) == [], "the odd pod is gone")
