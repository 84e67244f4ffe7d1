"""The story by token is that of the public events, which grow too old: then it says where the beginning is."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tessera.client.connect.where import Where
from tessera.client.sending import explaining
from tessera.client.sending.explaining import explain_job
from tessera.client.views.explain import explanation_lines, gone_sentence

JOB = "a" * 20
TAKEN = 7
WHERE = Where("main")


def event(n: int, kind: str, job: str = JOB) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{n}.0",
        "source": "/tessera/main",
        "type": f"io.tessera.job.{kind}.v1",
        "subject": job,
        "time": f"2026-10-01T12:00:{n:02}.000Z",
        "dataschema": "urn:tessera",
        "tenant": "lab",
        "sequence": f"{n:020}",
        "causationid": "tx",
        "data": {"job_id": job},
    }


class Gateway:
    """Knows the job, and keeps these events."""

    def __init__(self, *kept: dict[str, Any]) -> None:
        self._kept = kept

    async def get(self, path: str) -> dict[str, Any]:
        return {"as_of": 90, "job_id": JOB, "phase": "queued", "taken_n": TAKEN, "sentence": "It waits."}

    async def events(self, after: int | None, lost: Any, **query: Any) -> AsyncIterator[dict[str, Any]]:
        for found in self._kept:
            if query.get("job") in (None, found["subject"]):
                yield found


@pytest.fixture
def keeps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the gateway keep these events."""
    return lambda *kept: monkeypatch.setattr(explaining, "api_of", lambda *_: Gateway(*kept))


async def story() -> list[dict[str, Any]]:
    found = await explain_job(WHERE, JOB)
    assert explanation_lines(found, 0)[-1] == "as of 90"
    return list(found["story"])


OTHERS = event(50, "admitted", "b" * 20)


@pytest.mark.parametrize(
    ("kept", "gone"),
    [
        ((event(TAKEN, "admitted"), event(9, "allocated")), False),
        ((event(40, "admitted"),), False),  # a task, which was queued after its array was taken in
        ((event(9, "allocated"), event(12, "requeued")), True),
        ((OTHERS,), True),
        ((), False),
        ((event(5, "admitted", "b" * 20),), False),  # its own may be on their way
    ],
    ids=["whole", "task", "begins later", "all too old", "nothing kept", "not published yet"],
)
async def test_a_story_that_has_lost_its_beginning_says_who_has_it(
    keeps: Callable[..., None], kept: tuple[dict[str, Any], ...], gone: bool
) -> None:
    keeps(*kept)
    told = await story()
    assert [each["why"] for each in told if not each["event"]] == [gone_sentence(TAKEN)] * gone
    assert len(told) - gone == sum(each["subject"] == JOB for each in kept)


async def test_the_sentence_is_the_first_line_of_the_story(keeps: Callable[..., None]) -> None:
    keeps(event(9, "allocated"))
    lines = explanation_lines(await explain_job(WHERE, JOB), 0)
    begins = next(line for line in lines if "what happened before" in line)
    assert lines[lines.index(begins) - 1].startswith("What happened (times in")
    assert max(map(len, lines)) <= 80
