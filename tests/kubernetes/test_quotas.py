"""
Two Jobs under a ResourceQuota that has no room for both: the real Job controller makes some pods of each, so that
neither is ever whole. And submitted jobs whose pods the API server refuses, for a ResourceQuota or a LimitRange.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.domain.state import State
from tessera_schemas.config import Policy, Queue
from tests.e2e.live import configuration, job
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import live_on
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "small"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "6"}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def users(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Users]:
    own_plane.add_nodes(2, "gpu", gpus=8, cpu="16")
    body = configuration(policy=Policy(preset="priority"))
    body = body.model_copy(update={"queues": (*body.queues, Queue(name="parked", suspend_waiting=True))})
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body) as live:
        users = Users(live)
        users.create(QUOTA)
        await users.until(lambda: quota(users).get("status", {}).get("used"), "the quota is counted")
        yield users


RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "narrow"},
    "spec": {"limits": [{"type": "Pod", "max": {"cpu": "100m"}}]},
}


def quota(users: Users) -> Json:
    return users.api.get(f"/api/v1/namespaces/{users.namespace}/resourcequotas/small")


def make_locked(users: Users, **more: Any) -> None:
    """The controller makes 1, 2, 4 pods of a Job at a time, of both at once: so three of each."""
    for name in ("a", "b"):
        users.create(batch_job(name, 4, seconds=5, **more))


async def test_owners_under_a_quota_that_lets_neither_be_whole_are_told_its_name(users: Users) -> None:
    users.create(batch_job("large", 8, seconds=3600))
    await users.until(lambda: condition(users.job("large"), "tessera.io/Placed", "False"), "the Job says why it waits")
    said = condition(users.job("large"), "tessera.io/Placed", "False")
    assert (said["reason"], "exceeded quota: small" in said["message"]) == ("PodsMissing", True)
    await users.until(lambda: any(e["reason"] == "PodsMissing" for e in users.events("large")), "an event says it, too")
    rows = (await users.live.command("ls", "-o", "json", "--phase", "refused")).json["items"]
    assert ["exceeded quota: small" in str(row) for row in rows] == [True]
    users.delete("job", "large")
    await users.until(lambda: not users.pods("large"), "its pods are gone")


@pytest.mark.parametrize("how", ["by their queue", "at their creation"])
async def test_where_waiting_jobs_are_suspended_one_is_let_through_after_the_other(users: Users, how: str) -> None:
    more: Json = {"labels": {"tessera.io/queue": "parked"}} if how == "by their queue" else {"suspend": True}
    make_locked(users, **more)
    await users.until_complete("a", "b")
    for name in ("a", "b"):
        assert users.job(name)["status"].get("failed", 0) == 0
        users.delete("job", name)
    await users.until(lambda: not (users.pods("a") or users.pods("b")), "their pods are gone")


@pytest.mark.parametrize(
    ("gpus", "limits", "words"),
    [(8, None, "exceeded quota: small"), (1, RANGE, "maximum cpu usage per Pod is 100m")],
    ids=["a quota", "a range"],
)
async def test_a_submitted_job_whose_pods_are_refused_is_told_why_and_starts_once_they_are_not(
    users: Users, gpus: int, limits: Json | None, words: str
) -> None:
    live = users.live
    if limits is not None:
        users.create(limits)
    refused = (await live.submit(job("large", gpus=gpus, seconds=0.2))).job_id

    def tried(state: State) -> bool:
        """Whether it waits after a second try, and says in the API server's words what refuses its pods."""
        found = state.jobs.get(refused)
        if found is None or found.attempt < 2 or found.reason is None or found.reason.code != "BindRefused":
            return False
        assert found.strikes == 0, "its own attempts are not spent"
        return words in found.reason.detail

    await live.until(tried, "it has been tried again, and says why in vain")
    if limits is None:
        patch = {"spec": {"hard": {"requests.nvidia.com/gpu": "16"}}}
        users.kubectl("patch", "resourcequota", "small", "-n", users.namespace, "--type=merge", "-p", json.dumps(patch))
    else:
        users.delete("limitrange", "narrow")
    await live.until_phase(refused, "succeeded")
    ended = live.state.ended.get(refused)
    assert ended is not None
    assert ended.attempt < 20, "tries have pauses between them"
