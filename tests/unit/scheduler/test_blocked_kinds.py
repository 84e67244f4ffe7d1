"""Many different jobs that wait cost a decision what changed: counted in searches, not in time."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.domain.entities import Job
from tessera.engine.placement import gangs as gangs_module
from tessera.engine.placement.gangs import try_to_place
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy, Queue
from tessera_schemas.facts import Others
from tessera_schemas.reasons import Code
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, queue, role
from tests.ledgers import Committed
from tests.unit.scheduler.committer_world import World, made, reasons, started
from tests.unit.scheduler.contested_world import plan

KINDS = 30


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Number of searches since it was last asked."""
    asked: list[object] = []

    def search(*gang: Any) -> Any:
        asked.append(gang)
        return try_to_place(*gang)

    monkeypatch.setattr(gangs_module, "try_to_place", search)

    def count() -> int:
        found = len(asked)
        asked.clear()
        return found

    return count


@pytest.fixture
def blocked() -> Committed:
    """Three nodes of four GPUs, and gangs of many kinds before them that ask for eight on one."""
    ledger = Committed()
    ledger.commit(config_proposed(), holder="scheduler-1")
    ledger.commit(*(node_seen(name, gpus=4, labels={"rack": name}) for name in ("a", "b", "c")))
    kinds = [job_spec(role(gpus=8, cpu_milli=1000 + kind)) for kind in range(KINDS)]
    ledger.commit(*(admitted(f"k{at}", spec) for at, spec in enumerate(kinds)))
    return ledger


def test_each_kind_is_searched_for_once_and_told_so(blocked: Committed, searches: Callable[[], int]) -> None:
    message = blocked.commit(orders=(blocked.line(),))
    assert [record.kind for record in message.records] == ["waiting"] * KINDS
    assert searches() == KINDS


def test_a_node_that_changed_and_still_holds_none_leads_to_no_search(
    blocked: Committed, searches: Callable[[], int]
) -> None:
    blocked.commit(orders=(blocked.line(),))
    searches()
    for cpu in (32_000, 16_000, 64_000):
        records = blocked.commit(node_seen("b", gpus=4, cpu_milli=cpu, labels={"rack": "b"})).records
        assert not [record for record in records if record.kind in ("waiting", "allocated")]
    assert searches() == 0


def test_the_job_that_finds_room_starts_and_no_other_is_searched_for_twice(
    blocked: Committed, searches: Callable[[], int]
) -> None:
    blocked.commit(admitted("small", job_spec(role(gpus=1))))
    searches()
    records = blocked.commit(orders=(blocked.line(),)).records
    assert [record.kind for record in records].count("allocated") == 1
    searches()
    records = blocked.commit(node_seen("d", gpus=8)).records
    assert [record.kind for record in records if record.kind == "allocated"] == ["allocated"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs whose quota and room were looked at again."""
    found: list[str] = []
    refusal = SchedulingPass.refusal

    def count(self: SchedulingPass, job: Job) -> Code | None:
        found.append(job.job_id)
        return refusal(self, job)

    monkeypatch.setattr(SchedulingPass, "refusal", count)
    return found


def test_a_refused_job_is_not_even_asked_about_while_nothing_it_depends_on_changed(
    blocked: Committed, asked: list[str]
) -> None:
    blocked.commit(orders=(blocked.line(),))  # they are told
    blocked.commit()
    assert len(asked) == KINDS  # each one again, in its new form
    asked.clear()
    blocked.commit(node_seen("b", gpus=4, labels={"rack": "b"}, others=Others(cpu_milli=1000)))
    assert asked == []
    blocked.commit(admitted("small", job_spec(role(gpus=1))))
    started_too = [record.kind for record in blocked.commit(orders=(blocked.line(),)).records]
    assert started_too == ["allocated"]  # it took room and gave none
    blocked.commit()
    assert set(asked) <= {job_id(SHARD, "lab", "small")}


def test_a_refused_job_whose_quota_a_start_uses_up_is_told_of_the_quota() -> None:
    world = World(node_seen("a", gpus=4), body=config_body(queue(gpu_milli=8000)))
    for at in range(3):
        world.commit(admitted(f"k{at}", job_spec(role(gpus=8, cpu_milli=1000 + at))))
    assert reasons(world.place()) == [Code.NO_FIT] * 3
    world.commit()
    world.commit(admitted("small", job_spec(role(gpus=1), priority_class="high")))
    message = world.place()
    assert [record.kind for record in message.records].count("allocated") == 1
    assert reasons(message) == [Code.WAITING_FOR_QUOTA] * 3


def test_a_refused_job_that_may_not_be_evicted_is_asked_each_time_where_others_lend(asked: list[str]) -> None:
    quotas = queue(gpu_milli=8000).quotas
    children = (Queue(name=name, parent="top", quotas=quotas) for name in ("research", "batch"))
    world = World(node_seen(gpus=4), body=config_body(Queue(name="top"), *children))
    world.commit(admitted("firm", job_spec(role(gpus=8), preemptible=False)))
    world.commit(admitted("revocable", job_spec(role(gpus=8))))
    assert reasons(world.place()) == [Code.NO_FIT, Code.NO_FIT]
    world.commit()
    asked.clear()
    world.commit()
    assert asked == [job_id(SHARD, "lab", "firm")]


def test_a_refused_job_is_asked_again_once_an_earmark_takes_its_quota() -> None:
    rules = Policy(preset="priority", min_runtime_seconds=0, backfill="off")
    world = World(body=config_body(queue(gpu_milli=16_000), policy=rules)).queued(role(gpus=8))
    world.place()
    world.commit(made(), started())
    world.commit(admitted("k2", job_spec(role(gpus=8), priority_class="urgent")))
    world.commit(admitted("k3", job_spec(role(gpus=4))))
    assert reasons(world.place()) == [Code.NO_FIT, Code.NO_FIT]
    world.commit()  # both are refused again, and passed over from now on
    told = {record.job_id: record.reason.code for record in world.commit(plan()).records if record.kind == "waiting"}
    assert told[job_id(SHARD, "lab", "k3")] is Code.WAITING_FOR_QUOTA
