"""A job's spec sent again: what `--set` means, and which task of an array it is."""

from typing import Any

import pytest

from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.rerunning import apply_changes, narrow_to_task, read_changes
from tests.builders import job_spec, role
from tests.unit.client.job_views import named

SPEC: dict[str, Any] = job_spec(role(gpus=8), name="train").model_dump(mode="json", exclude_none=True)


def after(*said: str) -> dict[str, Any]:
    return apply_changes(SPEC, read_changes(SPEC, said))


def test_a_role_is_found_by_its_name_or_its_place_and_numbers_are_numbers() -> None:
    for path in ("roles.worker.resources.gpus", "roles.0.resources.gpus"):
        made = after(f"{path}=4")
        assert made["roles"][0]["resources"]["gpus"] == 4
        assert {**made, "roles": ()} == {**SPEC, "roles": ()}
    assert SPEC["roles"][0]["resources"]["gpus"] == 8, "the spec itself stays as it is"


def test_what_is_a_text_stays_one_and_so_does_each_variable() -> None:
    made = after("name=7", "roles.worker.template.env.SEED=3", "queue=a=b")
    assert (made["name"], made["queue"], made["roles"][0]["template"]["env"]) == ("7", "a=b", {"SEED": "3"})


def test_what_the_spec_does_not_say_is_made() -> None:
    assert after("checkpoint.notice_seconds=60")["checkpoint"] == {"notice_seconds": 60}
    assert after("time_limit_seconds=null")["time_limit_seconds"] is None
    assert after('roles.worker.gpu_models=["a"]')["roles"][0]["gpu_models"] == ["a"]


@pytest.mark.parametrize(
    "said", [("name",), ("=x",), ("name=a", "name=b"), ("roles.nobody.gpus=1",), ("name.first=x",), ("roles.9=1",)]
)
def test_a_change_of_nothing_is_refused(said: tuple[str, ...]) -> None:
    with pytest.raises(Failure) as told:
        after(*said)
    assert told.value.code is Exit.USAGE


def test_of_a_task_that_task_alone_runs_again_under_its_index() -> None:
    spec = {**SPEC, "array": {"tasks": "0-9", "limit": 2}}
    task = named("a", "failed").model_copy(update={"task_of": "b" * 20, "task": 7})
    assert narrow_to_task(spec, task)["array"] == {"tasks": "7"}
    assert narrow_to_task(spec, named("a", "failed")) == spec
