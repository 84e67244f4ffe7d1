"""Services as they are submitted: the example of the documentation, and what is refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.admission.decide.outcome import Origin, judge_tenant_command
from tessera.admission.decide.policy import AdmissionPolicy, Pools, tree_of
from tessera.client.sending.job_input import full_spec
from tessera.gateway.operations.rollouts import RolloutBody, programs_now, read_wish
from tessera_schemas.config import Config, Queue
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.reasons import Code
from tessera_schemas.text.reading import read_tenant_command
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tessera_schemas.work.spec_changes import RolloutWish
from tests.builders import config_body
from tests.unit.admission.admission_world import encoded

PAGE = Path(__file__).parents[3] / "docs" / "services.md"
EXAMPLES = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
EXAMPLE, ROLLED = (each for each in EXAMPLES if each["name"] == "chat")


def judged(**changes: Any) -> Any:
    """The outcome of submitting the page's example with these changes."""
    spec = full_spec(EXAMPLE) | changes
    tree = tree_of(Config(version=1, body=config_body(Queue(name="default"))))
    command = {"kind": "submit_job", "v": 1, "key": "chat-1", "spec": spec}
    origin = Origin(shard="main", tenant="lab", seq=1)
    return judge_tenant_command(read_tenant_command(encoded(command)), origin, AdmissionPolicy(1, tree, Pools()))


def test_the_page_s_example_is_admitted_with_tasks_for_its_replicas() -> None:
    fact = judged().fact
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.service == ServiceSize(min_replicas=2, max_replicas=8, replicas=3)
    assert fact.spec.array == JobArray(tasks=SERVICE_TASKS)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"array": {"tasks": "0-3"}}, "array"),
        ({"time_limit_seconds": 60}, "time_limit_seconds"),
        ({"service": {"min_replicas": 3, "max_replicas": 2}}, "max_replicas"),
        ({"service": {"min_replicas": 2, "max_replicas": 4, "replicas": 1}}, "min_replicas"),
    ],
    ids=["tasks of its own", "a time limit", "a minimum above the maximum", "fewer than the minimum"],
)
def test_what_no_service_has_is_refused_by_name(changes: dict[str, Any], word: str) -> None:
    (reason,) = judged(**changes).answer.reasons
    assert word in reason.field + reason.detail


def test_a_service_s_pods_do_not_grow() -> None:
    spec = full_spec(EXAMPLE)
    roles = [role | {"max_replicas": 4} for role in spec["roles"]]
    (reason,) = judged(roles=roles).answer.reasons
    assert "grows by replicas" in reason.detail


def test_the_page_s_rollout_changes_programs_alone() -> None:
    spec = judged().fact.spec
    wish = RolloutWish.model_validate(read_wish(RolloutBody.model_validate({"spec": ROLLED}), spec, 1))
    (now,), (program,) = programs_now(spec).values(), wish.programs.values()
    assert program.model_dump(mode="json") == now | {"image": "registry.example.com/chat:2"}


def test_no_rollout_names_the_devices_of_its_program() -> None:
    programs = {"main": {"image": "chat:2", "env": {"NVIDIA_VISIBLE_DEVICES": "all"}}}
    command = {"kind": "roll_service", "v": 1, "job_id": "a" * 20, "revision": 1, "programs": programs}
    origin = Origin(shard="main", tenant="lab", seq=1)
    outcome = judge_tenant_command(read_tenant_command(encoded(command)), origin, AdmissionPolicy())
    (reason,) = outcome.answer.reasons
    assert (reason.code, reason.field) == (Code.FORBIDDEN_FIELD, "programs.main.env.NVIDIA_VISIBLE_DEVICES")
