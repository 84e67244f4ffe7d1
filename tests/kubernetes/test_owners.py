"""
What a Job says of itself in its own status, on a real API server beside its Job controller, which writes there too.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.live import configuration
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.test_adoption import batch_job
from tests.kubernetes.users import Users, condition

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

Json = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest.fixture
def users(live: KubernetesLive) -> Users:
    return Users(live)


def placed(users: Users, name: str) -> Json:
    return condition(users.job(name), "tessera.io/Placed", "True", "False")


async def test_a_job_that_waits_says_why_and_later_that_it_is_placed_beside_what_its_controller_says(
    users: Users,
) -> None:
    users.create(batch_job("first", gpus=8, seconds=3600))
    await users.until_running("first")
    users.create(batch_job("second", gpus=8, seconds=2))
    await users.until(lambda: placed(users, "second").get("status") == "False", "the waiting Job says why")
    said = placed(users, "second")
    assert (said["reason"], "place 1 in the line" in said["message"]) == ("NoFit", True)
    assert placed(users, "first") == {}, "what started at once was told nothing"
    users.delete("job", "first")
    await users.until_complete("second")
    assert placed(users, "second").get("status") in ("True", "False")
    await users.until(lambda: placed(users, "second").get("status") == "True", "it says that it was placed")
    assert condition(users.job("second"), "Complete")
    users.delete("job", "second")


async def test_a_refused_job_names_the_field_and_a_suspended_one_says_why_it_waits(users: Users) -> None:
    users.create(batch_job("holds", gpus=8, seconds=3600))
    await users.until_running("holds")
    users.create(batch_job("wrong", template={"preemptionPolicy": "Never"}))
    users.create(batch_job("parked", 2, gpus=4, seconds=1, suspend=True))
    await users.until(lambda: placed(users, "wrong"), "the refused Job says so")
    assert "spec.preemptionPolicy" in placed(users, "wrong")["message"]
    await users.until(lambda: placed(users, "parked"), "the suspended Job says why it waits")
    assert condition(users.job("parked"), "Suspended"), "what its controller says is still there"
    shown = users.kubectl("get", "job", "parked", "-n", users.namespace, "-o", "jsonpath={.status.conditions[*].type}")
    assert set(shown.split()) == {"Suspended", "tessera.io/Placed"}
    users.delete("job", "holds")
    await users.until_complete("parked")
    for name in ("wrong", "parked"):
        users.delete("job", name)
