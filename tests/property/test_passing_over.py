"""Passing over jobs that get the same answer again changes no record: each is asked about in the plain loop here."""

from collections.abc import Sequence
from random import Random

import pytest

from tessera.domain.entities import Job
from tessera.domain.work.phases import Phase
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.allocation_size import ALLOCATION_BYTES_MAX, Longest, most_bytes
from tessera.engine.queueing.readiness import quota_reason
from tessera.engine.queueing.scheduling_pass import CapacityCache
from tessera.engine.scoring.policies import find_scoring_policy
from tessera.scheduler import decide as module
from tessera.scheduler.decide.draft import Draft
from tessera.scheduler.decide.reservations import ReservingPass
from tessera.scheduler.decide.starts import PODS_PER_MESSAGE
from tessera_schemas.facts import AnyFact
from tessera_schemas.job import Role
from tessera_schemas.ledger import Allocated, AnyRecord, Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import PASSED_MAX, Passed
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role
from tests.ledgers import Committed
from tests.property.happenings import next_fact

SHAPES = (role(gpus=1), role(gpus=4), role(replicas=3, gpus=2), role(gpus=8), role(gpus=0, cpu_milli=60_000))


def place_plainly(draft: Draft, pool: str, known: CapacityCache, looks_max: int | None) -> None:
    state = draft.state
    line = state.lines.get(pool)
    waiting = [state.jobs.get(job_id) for job_id in dict.fromkeys(line.jobs if line else ())]
    room = FreeCapacity(
        (node for node in state.nodes.values() if node.pool == pool), scoring=find_scoring_policy(state, pool)
    )
    longest = max((len(name) for name in room.nodes), default=0)
    pods, blocked = 0, list[Passed]()
    for job in waiting:
        if job is None or job.phase is not Phase.QUEUED or job.not_before > state.ts:
            continue
        if state.tree.pool(job.queue) != pool:
            continue
        if draft.full:
            return
        size = most_bytes(state, job, Longest(longest, 0))
        assert size <= ALLOCATION_BYTES_MAX
        over = state.quota_book().over(job.queue, "", job.amount)
        verdict = quota_reason(over) if over else room.place(job.roles)
        if isinstance(verdict, Reason):
            if job.reason is None or job.reason.code is not verdict.code:
                draft.add(Waiting(kind="waiting", job_id=job.job_id, reason=verdict))
            blocked.append(Passed(job.job_id, "unreserved"))
            continue
        if size > draft.bytes_left:
            return
        deadline = state.ts + state.tree.policy.start_timeout_seconds * 1000
        draft.add(
            Allocated(
                kind="allocated",
                job_id=job.job_id,
                attempt=job.attempt + 1,
                deadline=deadline,
                placements=verdict,
                passed=tuple(blocked[:PASSED_MAX]),
            )
        )
        pods += job.pods
        if pods >= PODS_PER_MESSAGE:
            return


def life(
    seed: int, shapes: Sequence[Role] = SHAPES, most: int = 3, quota: int = 14_000, **policy: object
) -> list[tuple[AnyRecord, ...]]:
    """The records of a shard with two queues under quota, on which jobs of few shapes come, run and end."""
    chance, ledger = Random(seed), Committed()
    body = config_body(queue("research", gpu_milli=quota), queue("batch", gpu_milli=9_000), policy=policy)
    ledger.commit(config_proposed(body), holder="scheduler-1")
    ledger.commit(*(node_seen(name, gpus=8) for name in ("a", "b", "c")))
    messages = []
    for turn in range(60):
        facts: list[AnyFact] = [
            admitted(f"{turn}-{i}", job_spec(chance.choice(shapes), queue=chance.choice(("research", "batch"))))
            for i in range(chance.randrange(most + 1))
        ]
        for name, run in list(ledger.state.runs.items()):
            if chance.random() < 0.4:
                facts.append(next_fact(name, run))
        messages.append(ledger.commit(*facts, orders=(ledger.line(),) if chance.random() < 0.7 else ()).records)
    return messages


@pytest.mark.parametrize("seed", range(12))
def test_the_records_are_those_of_the_plain_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = life(seed)
    assert {"allocated", "waiting", "released"} <= {record.kind for message in records for record in message}
    monkeypatch.setattr(module, "place_in_order", place_plainly)
    assert life(seed) == records


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_beside_reservations_they_are_those_of_asking_each_job(
    seed: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [role(gpus=gpus, cpu_milli=1000 + kind) for gpus in (1, 2, 4, 8) for kind in range(4)]
    policy = {"backfill": "reserve", "backfill_depth": depth}
    still_blocked, passed = ReservingPass.still_blocked, list[bool]()

    def note(self: ReservingPass, job: Job) -> bool:
        passed.append(still_blocked(self, job))
        return passed[-1]

    monkeypatch.setattr(ReservingPass, "still_blocked", note)
    records = life(seed, shapes, most=6, quota=22_000, **policy)
    assert any(passed)
    assert any(record.kind == "waiting" and record.reason.code is Code.RESERVED for each in records for record in each)
    monkeypatch.setattr(ReservingPass, "still_blocked", lambda self, job: False)
    assert life(seed, shapes, most=6, quota=22_000, **policy) == records
