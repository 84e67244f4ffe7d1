"""Who pays for runs that others ended: through binder, committer and reclamation, at a simulated cluster."""

from typing import Any

import pytest

from tessera.kernel.ports import ApiError
from tessera_schemas.base import Json
from tessera_schemas.ledger import Allocated, Requeued, Revoked
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

TIMES = 4
AGAIN = {"on_failure": True, "backoff_seconds": 0}


def fail(there: World, job: str, rank: int = 0, exit_code: int = 137, **status: Any) -> None:
    """A pod of the job's run ends, as its kubelet says."""
    ended = {"exitCode": exit_code, "reason": status.pop("why", "Error"), "finishedAt": status.pop("finished", None)}
    said = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}], **status}
    there.core.patch("pods", "lab", name_of(there, job, rank), {"status": said}, "status")


def name_of(there: World, job: str, rank: int = 0) -> str:
    names = [pod["metadata"]["name"] for pod in there.pods(there.current(job).run_id)]
    return next(name for name in names if name.endswith(f"-{rank}"))


def revokes(there: World) -> list[Revoked]:
    return [record for record in there.records if isinstance(record, Revoked)]


def evict(there: World, job: str) -> None:
    there.core.evict("lab", name_of(there, job))


def delete(there: World, job: str) -> None:
    there.core.delete("pods", "lab", name_of(there, job))


def shut_down(there: World, job: str) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    fail(there, job, exit_code=143, reason="Terminated", conditions=[target])


def press(there: World, job: str) -> None:
    fail(there, job, reason="Evicted", message="The node was low on resource: memory. ")


def restart(there: World, job: str) -> None:
    fail(there, job, why="ContainerStatusUnknown")


ENDS = [
    (evict, Code.POD_EVICTED),
    (delete, Code.POD_DELETED),
    (shut_down, Code.NODE_SHUT_DOWN),
    (press, Code.NODE_PRESSURE),
    (restart, Code.NODE_RESTARTED),
]


@pytest.mark.parametrize(("end", "code"), ENDS, ids=[code.value for _, code in ENDS])
@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_others_end_comes_back_at_once_as_often_as_it_happens(end: Any, code: Code, replicas: int) -> None:
    async with World(("node-a", "node-b", "node-c")) as there:
        job = await there.submit(spec=train(replicas=replicas, retry={"max_attempts": 2, "backoff_seconds": 10}))
        for attempt in range(1, TIMES + 1):
            end(there, job)
            await there.run(9)
            assert (there.job(job).phase, there.job(job).attempt) == ("running", attempt + 1)
        assert there.job(job).strikes == 0
        assert {record.reason.code for record in revokes(there)} == {code}
        assert not [record for record in there.records if isinstance(record, Requeued) and record.not_before]


def boots(there: World, node: str, boot: str) -> None:
    there.core.patch("nodes", "", node, {"status": {"nodeInfo": {"bootID": boot}}}, "status")


async def once_in_the_first_boot(there: World) -> str:
    """A job that runs, may be tried once, and whose nodes say which boot of the machine it is."""
    for node in ("node-a", "node-b"):
        boots(there, node, "boot-1")
    await there.run(1)
    return await there.submit(spec=train(retry={"max_attempts": 1}))


async def test_a_reboot_is_told_by_the_nodes_boot_although_the_binder_starts_anew() -> None:
    async with World() as there:
        job = await once_in_the_first_boot(there)
        (node,) = there.nodes_of(job)
        await there.stop("binder")
        there.start_binder()
        fail(there, job, exit_code=143)  # the node's own word comes a moment later
        await there.run(1)
        boots(there, node, "boot-2")
        await there.run(8)
        assert (there.job(job).phase, there.job(job).attempt, there.job(job).strikes) == ("running", 2, 0)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid) == (Code.NODE_RESTARTED, ())


async def test_a_reboot_that_a_hanging_watch_does_not_tell_is_asked_for() -> None:
    async with World() as there:
        job = await once_in_the_first_boot(there)
        (node,) = there.nodes_of(job)
        there.core.disturb_watches(drop=2)  # the pods' goes on with 410 at their second event, the nodes' has only one
        boots(there, node, "boot-2")
        fail(there, job, exit_code=143)
        fail(there, job, exit_code=143, message="as told again")
        await there.run(8)
        assert (there.job(job).phase, there.job(job).attempt, there.job(job).strikes) == ("running", 2, 0)
        assert [revoke.reason.code for revoke in revokes(there)] == [Code.NODE_RESTARTED]


async def test_a_program_that_was_killed_without_a_restart_pays() -> None:
    async with World() as there:
        job = await once_in_the_first_boot(there)
        fail(there, job, exit_code=137)
        await there.run(8)
        assert there.job(job).phase == "failed"


@pytest.mark.parametrize(("exit_code", "phase"), [(137, "running"), (3, "failed")])
async def test_a_program_that_was_killed_does_not_pay_if_its_node_is_no_more(exit_code: int, phase: str) -> None:
    """The machine was taken away while no binder looked: who killed the program cannot be asked any more."""
    async with World() as there:
        job = await once_in_the_first_boot(there)
        (node,) = there.nodes_of(job)
        await there.stop("binder")
        fail(there, job, exit_code=exit_code)
        there.core.remove_node(node)
        there.start_binder()
        await there.run(30)
        assert there.job(job).phase == phase
        (revoke,) = revokes(there)
        assert revoke.reason.code == (Code.NODE_LOST if phase == "running" else Code.POD_FAILED)


async def test_the_rank_that_failed_first_is_named_and_its_node_avoided() -> None:
    """The others fail because of it, and their kubelets may tell so before its own does."""
    async with World(tuple(f"node-{letter}" for letter in "abcde")) as there:
        job = await there.submit(spec=train(replicas=4, gpus=8, retry=AGAIN))
        bad = next(place.node for place in there.current(job).placements if place.rank == 3)
        fail(there, job, rank=0, exit_code=1, finished="2026-01-01T00:00:09Z")
        await there.run(0.5)
        fail(there, job, rank=3, exit_code=1, finished="2026-01-01T00:00:02Z")
        await there.run(9)
        (revoke,) = revokes(there)
        assert (revoke.reason.numbers["rank"], revoke.avoid) == (3, (bad,))
        assert there.job(job).attempt == 2
        assert bad not in there.nodes_of(job)


async def test_pods_that_fail_at_once_are_all_suspects() -> None:
    async with World(tuple(f"node-{letter}" for letter in "abcdef")) as there:
        job = await there.submit(spec=train(replicas=4, gpus=8, retry=AGAIN))
        bad = {place.node for place in there.current(job).placements if place.rank in (1, 3)}
        for rank in (1, 3):
            fail(there, job, rank=rank, exit_code=1, finished="2026-01-01T00:00:02Z")
        await there.run(9)
        (revoke,) = revokes(there)
        assert (set(revoke.avoid), revoke.reason.numbers["suspects"]) == (bad, 2)
        assert not bad & there.nodes_of(job)


# -- the surroundings say no


def refuses(
    there: World, monkeypatch: pytest.MonkeyPatch, status: int, message: str = "no", **labels: str
) -> list[float]:
    """Pods, or only those with these labels, are refused until the patch is undone; gives the times of the tries."""
    asked: list[float] = []
    create = there.core.create

    def judged(resource: str, namespace: str, obj: Json) -> Any:
        if resource == "pods" and labels.items() <= (obj["metadata"].get("labels") or {}).items():
            asked.append(there.clock.monotonic())
            raise ApiError(status, "Refused", message)
        return create(resource, namespace, obj)

    monkeypatch.setattr(there.core, "create", judged)
    return asked


async def test_jobs_that_their_namespace_refuses_wait_without_gpus_and_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as there:
        with monkeypatch.context() as patched:
            asked = refuses(there, patched, 403)
            facts = [admitted(f"k{index}", train(retry={"max_attempts": 1})) for index in range(100)]
            await there.commit(*facts)
            await there.run(600)
            jobs = [there.job(fact.job_id) for fact in facts]
            assert {job.phase for job in jobs} <= {"queued", "allocated", "evicting"}
            told = {job.reason.code for job in jobs if job.reason is not None}
            assert told <= {Code.NAMESPACE_REFUSES, Code.BIND_REFUSED}
            assert len(asked) < 16 + 30  # what had been placed before it was known, then one after the other
            assert len([at for at in asked if at > asked[-1] - 120]) <= 4
            assert len(there.state.runs) <= 1
        await there.run(90)
        assert sum(there.job(fact.job_id).phase == "running" for fact in facts) == 16
        assert not there.state.closed


@pytest.mark.parametrize(("status", "message"), [(403, "quota"), (404, "namespace"), (422, "invalid")])
async def test_a_refused_pod_gives_its_gpus_back_at_once_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    async with World() as there:
        with monkeypatch.context() as patched:
            refuses(there, patched, status)
            fact = admitted("k1", train(retry={"max_attempts": 1}))
            await there.commit(fact)
            await there.run(2)
            assert [record.reason.code for record in there.records if isinstance(record, Revoked)][:1] == [
                Code.BIND_REFUSED
            ]
            await there.run(300)
            assert len([record for record in there.records if isinstance(record, Allocated)]) < 14
        await there.run(70)
        job = there.job(fact.job_id)
        assert (job.phase, job.strikes) == ("running", 0)


async def test_one_job_that_is_refused_keeps_no_other_of_its_tenant_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as there:
        refuses(there, monkeypatch, 403, bad="yes")
        bad = admitted("bad", train(labels={"bad": "yes"}))
        await there.commit(bad)
        await there.run(100)
        await there.submit("good")
        assert there.job(bad.job_id).phase != "failed"


async def test_several_jobs_that_are_refused_let_one_that_never_was_try_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as there:
        refuses(there, monkeypatch, 403, bad="yes")
        await there.commit(*(admitted(f"bad{index}", train(labels={"bad": "yes"})) for index in range(12)))
        await there.run(200)
        assert there.state.closed
        good = admitted("good", train())
        await there.commit(good)
        await there.run(65)
        assert there.job(good.job_id).phase == "running"


async def test_a_webhook_that_fails_holds_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as there:
        refuses(there, monkeypatch, 500, 'failed calling webhook "policy.example": connection refused')
        job = admitted("k1", train())
        await there.commit(job)
        await there.run(20)
        (first, *_) = revokes(there)
        assert (first.reason.code, first.then) == (Code.BIND_REFUSED, "requeue")
        assert "policy.example" in first.reason.detail


async def test_trouble_of_the_api_server_itself_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as there:
        refuses(there, monkeypatch, 503, "etcd has no leader")
        await there.commit(admitted("k1", train()))
        await there.run(60)
        assert not revokes(there)
