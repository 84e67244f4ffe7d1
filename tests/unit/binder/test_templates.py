"""The specs that the binder remembers: bounded in bytes, and read from the ledger once they were forgotten."""

import pytest

from tessera.binder.pods import templates
from tessera.binder.pods.templates import Templates
from tessera.domain.entities import Job
from tessera.domain.storing.fast import replace
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.job import JobSpec, Template
from tessera_schemas.shard.records import RolloutRequested
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed

SPEC_BYTES, WORD = 50_000, 1000


class CountedLedger:
    """Which of its messages were read."""

    def __init__(self, books: Committed) -> None:
        self._books, self.read_ns = books, list[int]()

    async def read(self, seq: int) -> Message:
        self.read_ns.append(seq)
        return Message("", seq, self._books.stored[seq - 1])


class Specs:
    """Jobs of about `SPEC_BYTES` each, taken in one by one by messages that the binder has followed."""

    def __init__(self, jobs: int) -> None:
        books = Committed()
        books.commit(config_proposed(), node_seen(), holder="scheduler-1")
        self.ledger = CountedLedger(books)
        self.templates = Templates(self.ledger)  # type: ignore[arg-type]
        for number in range(jobs):
            books.commit(admitted(f"job-{number}", large(number)))
            self.templates.note(decode_entry(Message("", len(books.stored), books.stored[-1])))
        self.jobs: list[Job] = sorted(books.state.jobs.values(), key=lambda job: job.taken_n)


def large(number: int) -> JobSpec:
    words = {f"WORD_{index}": "x" * WORD for index in range(SPEC_BYTES // WORD)}
    template = Template(image="train:1", env=words | {"NUMBER": str(number)})
    return job_spec(role().model_copy(update={"template": template}))


async def test_specs_within_the_bound_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "BYTES_MAX", 5 * SPEC_BYTES)
    specs = Specs(jobs=4)
    assert [await specs.templates.of(job) for job in specs.jobs] == [large(number) for number in range(4)]
    assert specs.ledger.read_ns == []


async def test_a_few_large_specs_are_too_many_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "BYTES_MAX", 5 * SPEC_BYTES)
    specs = Specs(jobs=6)
    assert [await specs.templates.of(job) for job in reversed(specs.jobs)] == [large(n) for n in (5, 4, 3, 2, 1, 0)]
    assert specs.ledger.read_ns == [job.taken_n for job in (specs.jobs[1], specs.jobs[0])]


async def test_a_spec_larger_than_the_bound_is_read_each_time_and_forgets_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = Specs(jobs=1)
    (job,) = specs.jobs
    monkeypatch.setattr(templates, "BYTES_MAX", SPEC_BYTES // 2)
    fresh = Templates(specs.ledger)  # type: ignore[arg-type]
    assert [await fresh.of(job) for _ in range(2)] == [large(0)] * 2
    assert specs.ledger.read_ns == [job.taken_n] * 2


async def test_the_spec_of_a_task_is_its_arrays_also_once_it_was_forgotten() -> None:
    books = Committed()
    books.commit(config_proposed(), node_seen(), holder="scheduler-1")
    spec = job_spec(role(), array=JobArray(tasks="3-4"))
    books.commit(admitted("sweep", spec))
    books.commit()
    task = next(job for job in books.state.jobs.values() if job.task == 4)
    ledger = CountedLedger(books)
    assert await Templates(ledger).of(task) == spec  # type: ignore[arg-type]
    assert ledger.read_ns == [task.taken_n]


async def test_replicas_of_two_revisions_have_each_the_programs_of_its_own() -> None:
    books = Committed()
    books.commit(config_proposed(), node_seen(), holder="scheduler-1")
    spec = job_spec(role(), service=ServiceSize(max_replicas=2, replicas=1), array=JobArray(tasks=SERVICE_TASKS))
    service = admitted("chat", spec)
    books.commit(service)
    books.commit()
    old = next(job for job in books.state.jobs.values() if job.task_of)
    asked = {"kind": "rollout_requested", "job_id": service.job_id, "tenant": "lab", "revision": 1}
    programs = {"worker": {"image": "chat:2", "args": ["--fast"]}}
    books.commit(RolloutRequested.model_validate({**asked, "programs": programs}))
    books.commit()
    new = replace(old, spec_at=books.state.jobs.get(service.job_id).spec_at)
    kept = Templates(CountedLedger(books))  # type: ignore[arg-type]
    images = [(await kept.of(job)).roles[0].template.image for job in (old, new, old, new)]
    assert images == ["train:1", "chat:2", "train:1", "chat:2"]
    whole = await kept.of(new)
    assert whole.roles[0].template.args == ("--fast",)
    assert whole.roles[0].resources == spec.roles[0].resources
