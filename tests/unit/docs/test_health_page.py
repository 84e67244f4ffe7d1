"""The example of a test job on the page on sick machines does what the page says."""

import re
from pathlib import Path

import yaml

from tessera_schemas.cluster.health import HealthCause, HealthPolicy
from tests.builders import config_body
from tests.unit.scheduler.committer_world import World
from tests.unit.scheduler.suspected_nodes import body_with_test, causes, due, fail_on, fail_test, pass_test, suspects

PAGE = (Path(__file__).parents[3] / "docs" / "health.md").read_text()


def shown() -> HealthPolicy:
    found = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    (said,) = [each["health"] for each in found if "test" in each.get("health", {})]
    return HealthPolicy.model_validate(
        said | {"test": said["test"] | {"template": _as_stored(said["test"]["template"])}}
    )


def _as_stored(template: dict[str, object]) -> dict[str, object]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in template.items()}


def park(*names: str) -> World:
    """The page's test in the park of the other tests, which have the same tenant and queue."""
    policy = shown()
    assert policy.test is not None
    return suspects(*names, **{name: getattr(policy.test, name) for name in type(policy.test).model_fields})


def test_the_example_is_a_configuration_that_is_accepted() -> None:
    assert config_body(health=shown()).health == shown()
    assert shown().test is not None
    assert body_with_test().health is not None


def test_a_node_gets_the_example_and_is_out_once_it_fails() -> None:
    here = park("node-03")
    (fact,) = due(here)
    (role,) = fact.spec.roles
    assert (role.template.image, role.resources.gpus, fact.spec.time_limit_seconds) == (
        "registry.example/all-reduce:1",
        8,
        900,
    )
    fail_test(here, "node-03")
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]


def test_a_node_that_passes_the_example_is_good_until_a_third_job_fails_there() -> None:
    here = park("node-03")
    pass_test(here, "node-03")
    assert causes(here.state, "node-03") == []
    fail_on(here, "again", "node-03")
    assert causes(here.state, "node-03") == [HealthCause.FAILURES]
    assert "3 jobs failed there" in here.state.drains.get("node-03").why
