"""The container of `health.test`, which no submit brings past admission, is judged with the configuration."""

from typing import Any

import pytest

from tessera.admission.decide.configuration import find_config_faults
from tessera_schemas.cluster.health import HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.job import Template
from tests.builders import config_body


def faults(**template: Any) -> list[tuple[str, str | None]]:
    asked = Template.model_validate({"image": "test:1", **template})
    test = HealthTest(tenant="lab", queue="research", template=asked)
    body = config_body(health=HealthPolicy(reputation=ReputationPolicy(), test=test))
    return [(each.code.value, each.field) for each in find_config_faults(body)]


def test_a_container_that_a_job_may_have_is_accepted() -> None:
    assert faults(env={"NCCL_DEBUG": "INFO"}) == []


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, ("ForbiddenField", "env.NVIDIA_VISIBLE_DEVICES")),
        ({"annotations": {"tessera.io/devices": "0"}}, ("ForbiddenField", "annotations.tessera.io/devices")),
        ({"volumes": ({"kind": "mapped", "path": "/data", "mount_path": "/data"},)}, ("InvalidField", "volumes")),
    ],
)
def test_what_no_job_may_have_is_refused_by_its_path(template: dict[str, Any], found: tuple[str, str]) -> None:
    code, path = found
    assert faults(**template) == [(code, f"health.test.template.{path}")]
