"""Rows of a snapshot that are copied from the first of their kind are what reading each by itself gives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.entities import Job
from tessera.domain.storing import snapshot_rows
from tessera.domain.storing.canonical import encode
from tessera.domain.storing.fast import replace, replacer
from tessera.domain.storing.snapshot_rows import FORMS, ROWS, RowReader
from tessera.domain.work.phases import Phase
from tessera_schemas.base import INT_MAX
from tessera_schemas.job import JobIdle
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, job_spec, role
from tests.ledgers import Committed
from tests.random_ledger import random_ledger

MARKS = [mark.decode() for forms in FORMS.values() for form in forms for pair in form._marks for mark in pair]
"""Texts by which the fields of a row are found."""
TEXTS = st.sampled_from(["", "k", "ü\n", '"}', "\\", *MARKS, *(f"a{mark}5" for mark in MARKS)]) | st.text(max_size=3)
NUMBERS = st.sampled_from([0, 1, INT_MAX])
FIELDS_AS_NUMBERS = (
    "told_ts",
    "time_limit_seconds",
    "taken_n",
    "fact_index",
    "submitted_ts",
    "phase",
    "reason",
    'x"told_ts',
)
REASONS = st.none() | st.builds(
    Reason,
    code=st.just(Code.NO_FIT),
    detail=TEXTS,
    numbers=st.dictionaries(st.sampled_from(FIELDS_AS_NUMBERS), NUMBERS, max_size=4),
)


@pytest.fixture(scope="module")
def job() -> Job:
    books = Committed().begin()
    books.commit(admitted("k1", job_spec(role(gpus=1))))
    return next(iter(books.state.jobs.values()))


JOBS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("job_id", "tenant", "queue", "name", "key", "spec_hash", "trace", "user"), TEXTS),
        **dict.fromkeys(("taken_n", "fact_index", "submitted_ts", "told_ts", "time_limit_seconds", "number"), NUMBERS),
        "phase": st.sampled_from([Phase.QUEUED, Phase.RUNNING]),
        "reason": REASONS,
        "idle": st.sampled_from([None, JobIdle()]),
    }
)


@pytest.mark.parametrize("kinds_max", [1, 4_096])
@given(changed=st.lists(JOBS, min_size=1, max_size=6))
def test_jobs_read_one_after_the_other_are_what_each_is_alone(
    job: Job, kinds_max: int, changed: list[dict[str, Any]]
) -> None:
    jobs = [replace(job, **fields) for fields in changed]
    _check("jobs", [*jobs, *jobs], kinds_max)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_state_are_what_each_is_by_itself(seed: int) -> None:
    state = random_ledger(seed, 120).state
    for name in ROWS:
        _check(name, list(getattr(state, name).values()), 4_096)


def _check(name: str, rows: list[Any], kinds_max: int) -> None:
    bodies = [encode(row) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_rows, "KINDS_MAX", kinds_max)
        read = RowReader().read(name, bodies)
    assert read == rows
    assert read == [ROWS[name][0].validate_json(body) for body in bodies]
    assert [encode(row) for row in read] == bodies


def test_a_job_like_the_one_before_is_a_copy_of_it_and_holds_the_same_parts(job: Job) -> None:
    """Reading a row whole makes every part of it anew, which is what a restart with a hundred thousand cannot pay."""
    jobs = [replace(job, job_id=f"j{n}", key=f"k{n}", told_ts=n, number=7 * (n + 1)) for n in range(3)]
    one, *others = RowReader().read("jobs", [encode(each) for each in jobs])
    for other in others:
        assert other.retry is one.retry
        assert other.amount is one.amount
    assert others[0].spec_hash is others[1].spec_hash


def test_jobs_of_before_numbers_are_copies_of_one_another_too(job: Job) -> None:
    jobs = [replace(job, job_id=f"j{n}", key=f"k{n}", number=0) for n in range(3)]
    assert len({id(each.retry) for each in RowReader().read("jobs", [encode(each) for each in jobs])}) == 1


def test_a_row_whose_fields_stand_elsewhere_is_read_whole(job: Job) -> None:
    """No release wrote one; whoever reads it takes each field by its name."""
    body = encode(job)
    moved = body.replace(b',"told_ts":0', b"").replace(b'"trace":', b'"told_ts":7,"trace":')
    assert RowReader().read("jobs", [body, moved, moved])[1:] == [replace(job, told_ts=7)] * 2


def test_a_text_where_a_row_has_a_number_is_found_before_it_is_copied(job: Job) -> None:
    body = encode(job)
    with pytest.raises(ValueError, match="told_ts"):
        RowReader().read("jobs", [body, body.replace(b'"told_ts":0', b'"told_ts":"x"')])


def test_a_replacer_makes_what_replace_makes(job: Job) -> None:
    assert replacer(Job, ("key", "told_ts"))(job, "k9", 5) == replace(job, key="k9", told_ts=5)
