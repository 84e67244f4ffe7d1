"""Templates as people write them in a configuration, and what the command line makes of parameters."""

from pathlib import Path
from typing import Any

import pytest

from tessera.client.cluster import applying
from tessera.client.commands.jobs.templates import brief, may_be
from tessera.client.input import files
from tessera.client.outcomes import Failure
from tessera.client.sending import submitting
from tessera_schemas.job import JobSpec
from tessera_schemas.work.templates import Parameter

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "templates.yaml"


def test_the_example_may_be_applied_and_gives_the_job_that_it_shows() -> None:
    body = applying.read_body(files.config_body(files.read_yaml(EXAMPLE), "templates.yaml"))
    (template,) = body.templates
    values = template.read({"lr": "0.3", "gpus": "4", "corpus": "news"})
    assert isinstance(values, dict)
    job = template.expanded(values, {})
    assert isinstance(job, JobSpec)
    worker = job.roles[0]
    assert (job.time_limit_seconds, worker.resources.cpu_milli, worker.resources.gpus) == (43_200, 16_000, 4)
    assert worker.template.args == ("--lr=0.3", "--data=/data")
    assert (worker.template.volumes[0].name, worker.template.volumes[0].read_only) == ("corpus-news", True)


def test_a_share_of_a_gpu_is_still_read_beside_placeholders() -> None:
    spec = {"name": "x", "queue": "q", "replicas": "{pods}", "resources": {"cpu": 1, "gpus": "0.5"}, "template": {}}
    body = files.config_body({"templates": [{"name": "x", "spec": spec}]}, "f")
    assert body["templates"][0]["spec"]["roles"][0]["resources"] == {"cpu_milli": 1000, "gpu_milli": 500}


def test_a_placeholder_where_people_write_a_quantity_is_refused_by_name() -> None:
    spec = {"name": "x", "resources": {"cpu": "{cores}"}, "template": {}}
    with pytest.raises(Failure, match=r"templates\.x: resources\.cpu"):
        files.config_body({"templates": [{"name": "x", "spec": spec}]}, "f")


def test_parameters_are_names_with_values_each_once() -> None:
    assert submitting.parameters_of(["lr=0.1", "text=a=b", "empty="]) == {"lr": "0.1", "text": "a=b", "empty": ""}
    for wrong in (["lr"], ["=1"], ["lr=1", "lr=2"]):
        with pytest.raises(Failure, match="NAME=VALUE"):
            submitting.parameters_of(wrong)


@pytest.mark.parametrize(
    ("parameter", "short", "bounds"),
    [
        ({"name": "lr", "type": "string", "default": "0.1"}, "lr=0.1", "up to 256 characters"),
        ({"name": "n", "type": "int", "min": 1, "max": 8}, "n", "1..8"),
        ({"name": "n", "type": "int", "default": 0, "min": 0}, "n=0", "0.."),
        ({"name": "n", "type": "int"}, "n", "a whole number"),
        ({"name": "c", "type": "choice", "values": ["a", "b"]}, "c", "a | b"),
    ],
)
def test_a_parameter_is_told_in_a_few_words(parameter: dict[str, Any], short: str, bounds: str) -> None:
    read = Parameter.model_validate(parameter)
    assert (brief(read), may_be(read)) == (short, bounds)
