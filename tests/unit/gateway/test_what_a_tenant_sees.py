"""
What every reading of the API tells a tenant of others: nothing that names them.

Another tenant's jobs of every kind (running, preempted, waiting, ended, refused, tasks of arrays) are there under a
name, a user and a tenant that the word RIVAL marks. The table is the API's own: a new operation is read without being
named here, or asks for a line in `NOT_READ`.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tessera.gateway.operations.routes import ROUTES, Route
from tessera.testkit.sim.planner import plan_for
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy, Queue
from tessera_schemas.facts import RunAbsent
from tessera_schemas.work.arrays import JobArray
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, work_refused
from tests.unit.gateway.gateway_world import World

RIVAL = "rival"
MINE = job_id(SHARD, "lab", "mine")
THEIRS = ("theirs-ran", "theirs-urgent", "theirs-waits", "theirs-array")
NOT_READ = {
    "config": "an operator's",
    "events": "by subject, tests/unit/gateway/test_streams.py",
    "job_logs": "of one's own job alone, tests/unit/gateway/test_logs.py",
    "openapi": "the same for everybody",
}
READ = [route for route in ROUTES if route.method == "GET" and route.name not in NOT_READ]


def theirs(key: str, priority_class: str = "normal", pods: int = 2, **more: Any) -> Any:
    spec = job_spec(
        role(replicas=pods, gpus=8), name=f"{RIVAL}-{key}", user=f"{RIVAL}-user", priority_class=priority_class, **more
    )
    return admitted(key, spec, tenant=RIVAL)


async def rivals(world: World) -> None:
    """A job of `lab` that was stopped for one of theirs, and waits behind another one; one of theirs has ended."""
    committed = world.committed
    policy = Policy(preset="priority", backfill="reserve", min_runtime_seconds=0)
    body = config_body(Queue(name="research"), tenants=("lab", RIVAL), policy=policy)
    committed.commit(config_proposed(body, 1))
    ran = theirs("theirs-ran")
    committed.commit(ran)
    committed.end(ran.job_id, "ran")
    committed.commit(admitted("mine", job_spec(role(replicas=2, gpus=8), name="mine", priority_class="low")))
    run = committed.start(MINE, "mine")
    urgent = theirs("theirs-urgent", "high")
    committed.commit(urgent)
    state = committed.state
    plan = plan_for(state, state.jobs.get(urgent.job_id), [state.runs.get(run)])
    assert plan is not None
    committed.commit(plan)
    committed.commit(RunAbsent(kind="run_absent", run_id=run))
    committed.commit(theirs("theirs-array", pods=1, array=JobArray(tasks="0-1")))
    committed.commit(theirs("theirs-waits", "high"))
    committed.commit(orders=(committed.line(),))
    committed.commit(work_refused(tenant=RIVAL, group=f"batch/Job/{RIVAL}/uid-0"))
    await world.publish_what_is_committed()
    quote = {f"by_{chance}_ts": committed.ts for chance in (10, 50, 80, 95)} | {"ts": committed.ts}
    waiting = [job.job_id for job in committed.state.jobs.values() if job.tenant == RIVAL]
    world.views.quotes = orjson.dumps({"n": 1, "ts": committed.ts, "quotes": dict.fromkeys([MINE, *waiting], quote)})


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.committed.begin(node_seen("node-a"), node_seen("node-b"))
    return made


def path_of(route: Route) -> str:
    return route.path.format(job_id=MINE) + ("?timeout=0" if route.name == "wait_for_job" else "")


async def test_nothing_that_a_tenant_reads_names_another(world: World) -> None:
    await rivals(world)
    lab, operator = world.token("lab"), world.token(None)
    hidden = {RIVAL, *(job_id(SHARD, RIVAL, key) for key in THEIRS)}
    to_operator = ""
    async with world.gateway():
        for route in READ:
            said = await world.ask("GET", path_of(route), lab)
            assert said.status == 200, (route.path, said.body)
            assert [word for word in sorted(hidden) if word in str(said.body)] == [], (route.path, said.body)
            to_operator += str((await world.ask("GET", path_of(route), operator)).body)
    assert [word for word in sorted(hidden) if word not in to_operator] == []  # there was something to hide
