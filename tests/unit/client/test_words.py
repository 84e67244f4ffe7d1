"""Keys, quantities, files: what people write and what is sent."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.client.cluster import applying
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending.keys import CI_SYSTEMS, choose_key
from tessera.client.sending.ordering import describe_cancelled_owner
from tessera.client.sending.submitting import name_of, spec_of_options
from tessera_schemas.cluster.device_claims import DeviceClaim
from tessera_schemas.job import JobSpec, Toleration
from tessera_schemas.text import quantities, units
from tessera_schemas.work.short_form import full_job

CI = {
    "GitHub": {
        "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/llm", "GITHUB_RUN_ID": "77", "GITHUB_JOB": "train",
        "GITHUB_RUN_ATTEMPT": "2",
    },
    "GitLab": {"GITLAB_CI": "true", "CI_PROJECT_PATH": "acme/llm", "CI_PIPELINE_ID": "5", "CI_JOB_ID": "9"},
    "Buildkite": {
        "BUILDKITE": "true", "BUILDKITE_BUILD_ID": "b1", "BUILDKITE_STEP_ID": "s1", "BUILDKITE_RETRY_COUNT": "3",
    },
    "Jenkins": {"JENKINS_URL": "https://ci", "JOB_NAME": "acme train", "BUILD_NUMBER": "12"},
    "CircleCI": {
        "CIRCLECI": "true", "CIRCLE_PROJECT_REPONAME": "llm", "CIRCLE_WORKFLOW_ID": "w", "CIRCLE_JOB": "train",
        "CIRCLE_BUILD_NUM": "4",
    },
}  # fmt: skip
EXPECTED = {
    "GitHub": "github:acme/llm:77:train:2:nightly",
    "GitLab": "gitlab:acme/llm:5:9:1:nightly",
    "Buildkite": "buildkite:b1:s1:3:nightly",
    "Jenkins": "jenkins:acme-train:12:1:nightly",
    "CircleCI": "circleci:llm:w:train:4:nightly",
}


def never() -> str:
    raise AssertionError("nothing random is needed")


@pytest.mark.parametrize("system", CI)
def test_a_ci_run_names_the_key_so_that_a_repeated_step_is_the_same_job(system: str) -> None:
    chosen = choose_key(None, "nightly", CI[system], never)
    assert chosen.key == EXPECTED[system]
    assert chosen.source in {ci.name for ci in CI_SYSTEMS}


def test_a_rerun_is_a_new_job() -> None:
    again = CI["GitHub"] | {"GITHUB_RUN_ATTEMPT": "3"}
    assert choose_key(None, "n", again, never).key != choose_key(None, "n", CI["GitHub"], never).key


def test_a_given_key_comes_before_that_of_the_ci() -> None:
    assert choose_key("mine", "n", CI["GitHub"], never).key == "mine"


def test_an_empty_key_is_an_error_and_no_other_key() -> None:
    with pytest.raises(Failure, match="key: empty, perhaps"):
        choose_key("", "n", CI["GitHub"], never)


@pytest.mark.parametrize("missing", ["GITHUB_RUN_ID", "GITHUB_ACTIONS"])
def test_half_a_ci_environment_gives_a_random_key(missing: str) -> None:
    environment = CI["GitHub"] | {missing: ""}
    assert choose_key(None, "n", environment, lambda: "r" * 32) == choose_key(None, "n", {}, lambda: "r" * 32)


def test_a_long_ci_environment_gives_a_short_key_of_its_own() -> None:
    one, two = (CI["GitHub"] | {"GITHUB_REPOSITORY": "a" * 300, "GITHUB_RUN_ID": run} for run in ("1", "2"))
    keys = {choose_key(None, "n", environment, never).key for environment in (one, two)}
    assert len(keys) == 2
    assert all(len(key) <= 200 for key in keys)


@pytest.mark.parametrize(
    ("convert", "text", "expected"),
    [
        (quantities.cpu_milli, "2", 2000),
        (quantities.cpu_milli, 2, 2000),
        (quantities.cpu_milli, 0.5, 500),
        (quantities.cpu_milli, "500m", 500),
        (quantities.memory_bytes, "16Gi", 16 * 2**30),
        (quantities.memory_bytes, "1.5Gi", 3 * 2**29),
        (quantities.memory_bytes, "500M", 500_000_000),
        (quantities.memory_bytes, 1024, 1024),
        (quantities.seconds, "90", 90),
        (quantities.seconds, "2h", 7200),
        (quantities.gpu_milli, "0.5", 500),
    ],
)
def test_a_friendly_quantity_becomes_an_integer(convert: object, text: object, expected: int) -> None:
    assert convert(text) == expected  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "-1", "1e3", "0.0001", "16gb", "two", "1Gi ", "nan", "Infinity", True, [1]])
def test_what_is_no_quantity_of_cpu_is_refused_and_never_rounded(text: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|whole number"):
        quantities.cpu_milli(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (units.format_memory(2**40), "1Ti"),
        (units.format_memory(3 * 2**29), "1.5Gi"),
        (units.format_memory(7), "7"),
        (units.format_milli(1500), "1.5"),
        (units.format_milli(96_000), "96"),
        (units.format_age(59_000), "59s"),
        (units.format_age(3_720_000), "1h2m"),
        (units.format_age(-5), "0s"),
    ],
)
def test_numbers_are_said_shortly(said: str, expected: str) -> None:
    assert said == expected


def test_a_job_file_of_one_role_becomes_the_spec_that_is_sent() -> None:
    value = {
        "name": "train", "queue": "q", "time_limit": "2h", "replicas": 2, "template": {"image": "a"},
        "resources": {"cpu": "8", "memory": "64Gi", "gpus": "0.5"},
    }  # fmt: skip
    assert files.job_spec(value, "job.yaml") == {
        "name": "train",
        "queue": "q",
        "time_limit_seconds": 7200,
        "roles": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {"image": "a"},
                "resources": {"cpu_milli": 8000, "memory_bytes": 64 * 2**30, "gpu_milli": 500},
            }
        ],
    }


def test_unknown_fields_of_a_file_are_left_for_the_contract_to_refuse() -> None:
    assert files.job_spec({"hostNetwork": True}, "job.yaml") == {"hostNetwork": True}


def test_a_job_of_one_role_says_at_its_top_level_where_its_pods_go() -> None:
    said = {
        "affinity": [{"key": "ssd", "operator": "Exists"}],
        "topology": {"level": "rack"},
        "spread": "row",
        "resources": {"gpu_memory": "40Gi", "devices": {"rdma/hca": 1}},
    }
    asked = {"gpu_memory_bytes": 40 * 2**30, "devices": {"rdma/hca": 1}}
    assert files.job_spec(said, "job.yaml") == {"roles": [{"name": "worker", **said, "resources": asked}]}


def test_the_shortest_job_has_its_resources_and_image_at_its_top_level() -> None:
    short = {"name": "a", "gpus": 8, "cpu": 16, "memory": "64Gi", "image": "i", "command": ["c"], "replicas": 2}
    full = {
        "name": "a",
        "roles": [
            {
                "name": "worker",
                "replicas": 2,
                "resources": {"gpus": 8, "cpu_milli": 16_000, "memory_bytes": 64 * 2**30},
                "template": {"image": "i", "command": ["c"]},
            }
        ],
    }
    assert full_job(short) == full_job(full) == full


def test_the_preferred_nodes_of_the_page_are_those_of_a_job_of_one_role() -> None:
    page = (Path(__file__).parents[3] / "docs/placement.md").read_text().partition("### Preferred nodes")[2]
    said = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])
    spec = full_job({"name": "a", "queue": "q", "gpus": 1, "image": "a", "spread": "zone", "max_skew": 2, **said})
    spec["roles"][0]["resources"] |= {"cpu_milli": 1, "memory_bytes": 1}
    (role,) = JobSpec.model_validate(spec).roles
    assert [(each.weight, each.terms[0].operator) for each in role.affinity_preferred] == [(80, "In"), (20, "Gt")]
    assert role.max_skew == 2


def test_what_is_said_twice_or_beside_roles_is_left_for_the_contract_to_refuse() -> None:
    assert full_job({"gpus": 8, "resources": {"gpus": 4}})["gpus"] == 8
    assert full_job({"gpus": 8, "resources": "all"})["gpus"] == 8
    assert full_job({"gpus": 8, "roles": []}) == {"gpus": 8, "roles": []}


def test_quotas_of_a_configuration_may_be_said_by_name() -> None:
    body = files.config_body({"queues": [{"name": "q", "quotas": {"gpus": 8, "memory": "1Ki"}}]}, "c.yaml")
    assert body["queues"][0]["quotas"] == [
        {"resource": "gpu_milli", "nominal": 8000},
        {"resource": "memory_bytes", "nominal": 1024},
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "appears twice"),
        ("a: [", "is not YAML"),
        ("- 1\n", "holds no mapping"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_usage_error_that_names_it(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Failure, match=words) as failed:
        files.read_yaml(path)
    assert failed.value.code is Exit.USAGE
    assert str(path) in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("command", "name"),
    [(["python", "-m", "Train.py"], "train-py"), (["/usr/bin/nvidia-smi"], "nvidia-smi"), (["--"], "job"), ([], "job")],
)
def test_a_job_without_a_name_is_called_after_what_it_runs(command: list[str], name: str) -> None:
    assert name_of(command) == name


def test_options_and_a_command_make_a_job_of_one_role() -> None:
    spec = spec_of_options(
        ["echo", "$$"], name=None, queue="q", image="a", replicas=2, gpus=8, gpu_milli=0, cpu="2", memory="1Gi",
        gpu_model=["h100"],
    )  # fmt: skip
    (role,) = spec["roles"]
    assert role["resources"] == {"cpu": "2", "memory": "1Gi", "gpus": 8}
    assert role["template"]["command"] == ["echo", "$$$$"]
    assert role["gpu_models"] == ["h100"]
    assert "tolerations" not in role


def test_options_ask_for_a_share_of_each_of_several_gpus() -> None:
    spec = spec_of_options(
        ["a"], name=None, queue="q", image="a", replicas=1, gpus=0, gpu_milli=250, gpu_parts=2, cpu="1", memory="1Gi",
        gpu_model=[],
    )  # fmt: skip
    assert spec["roles"][0]["resources"] == {"cpu": "1", "memory": "1Gi", "gpu_milli": 250, "gpu_parts": 2}


def claims(*device: str, match: str | None = None) -> list[Any]:
    """Claims of the role that these options make, as the contract reads them."""
    spec = spec_of_options(
        ["a"], name=None, queue="q", image="a", replicas=1, gpus=0, gpu_milli=0, cpu="1", memory="1Gi", gpu_model=[],
        device=device, match=match,
    )  # fmt: skip
    return [DeviceClaim.model_validate(each) for each in spec["roles"][0]["resources"]["claims"]]


def asked(claim: DeviceClaim) -> list[tuple[str, str, int]]:
    return [(each.name, each.choices[0].device_class, each.choices[0].count) for each in claim.requests]


def test_devices_of_several_classes_are_claims_of_their_own() -> None:
    assert [asked(each) for each in claims("gpu:4", "nic")] == [[("devices", "gpu", 4)], [("devices", "nic", 1)]]


def test_a_match_without_pairs_is_between_all_devices_of_one_claim() -> None:
    (claim,) = claims("gpu:4", "nic:4", match="numa")
    assert asked(claim) == [("devices-0", "gpu", 4), ("devices-1", "nic", 4)]
    assert [(each.requests, each.match) for each in claim.constraints] == [((), "numa")]


def test_a_match_with_pairs_is_between_the_devices_of_each_pair() -> None:
    (claim, lone) = claims("gpu+nic:2", "disk", match="root")
    wanted = [("devices-0-0-0", "gpu", 1), ("devices-0-0-1", "nic", 1)]
    assert asked(claim) == [*wanted, ("devices-0-1-0", "gpu", 1), ("devices-0-1-1", "nic", 1)]
    pairs = [("devices-0-0-0", "devices-0-0-1"), ("devices-0-1-0", "devices-0-1-1")]
    assert [(each.requests, each.match) for each in claim.constraints] == [(pair, "root") for pair in pairs]
    assert asked(lone) == [("devices", "disk", 1)]
    assert not lone.constraints


@pytest.mark.parametrize(
    ("device", "match"), [(("gpu+:4",), None), (("gpu:0",), None), (("gpu",), "numa"), ((), "numa")]
)
def test_devices_that_cannot_be_read_and_a_match_of_one_device_are_mistakes(
    device: tuple[str, ...], match: str | None
) -> None:
    with pytest.raises(Failure):
        claims(*device, match=match)


TOLERATIONS = {
    "spot": {"key": "spot"},
    "spot:NoExecute": {"key": "spot", "effect": "NoExecute"},
    "spot=": {"key": "spot", "operator": "Equal"},
    "example.org/team=ml:NoSchedule": {
        "key": "example.org/team",
        "operator": "Equal",
        "value": "ml",
        "effect": "NoSchedule",
    },
}


@pytest.mark.parametrize(("text", "said"), TOLERATIONS.items())
def test_a_toleration_is_written_as_kubectl_writes_taints(text: str, said: dict[str, str]) -> None:
    spec = full_job({"name": "a", "gpus": 1, "image": "a", "tolerations": [text, {"key": "own"}]})
    assert spec["roles"][0]["tolerations"] == [said, {"key": "own"}]
    Toleration.model_validate(said)


def test_a_quota_may_be_a_part_of_its_pool_and_a_shown_configuration_says_so_again() -> None:
    said = {
        "a": {"gpus": "all", "cpu": "25 %", "memory": "1Ki"},
        "b": [{"resource": "gpu_milli", "nominal": "50%"}, {"resource": "cpu_milli", "nominal": 8000}],
    }
    value = {"tenants": [{"name": "lab"}], "queues": [{"name": n, "quotas": quotas} for n, quotas in said.items()]}
    read = applying.read_file(value, "c.yaml")
    found = {queue.name: {q.resource: (q.nominal, q.part_percent) for q in queue.quotas} for queue in read.body.queues}
    assert found == {
        "a": {"gpu_milli": (0, 100), "cpu_milli": (0, 25), "memory_bytes": (1024, None)},
        "b": {"gpu_milli": (0, 50), "cpu_milli": (8000, None)},
    }
    shown = applying.shown(read.body)
    assert "nominal: 50%" in shown
    assert applying.read_file(files.parse_yaml(shown, "shown"), "shown").body == read.body


@pytest.mark.parametrize("wrong", ["0%", "101%", "-5%", "half", "1.5%"])
def test_a_part_is_a_percentage_of_1_to_100(wrong: str) -> None:
    value = {"tenants": [{"name": "lab"}], "queues": [{"name": "q", "quotas": {"gpus": wrong}}]}
    with pytest.raises((Refused, Failure)):
        applying.read_file(value, "c.yaml")


@pytest.mark.parametrize(
    ("owner", "said"),
    [("Pod/web-1", "scale that down (kubectl scale --replicas=0)"), ("Job/train", "Job/train is suspended")],
)
def test_a_cancel_says_what_becomes_of_the_owner_of_users_pods(owner: str, said: str) -> None:
    assert said in describe_cancelled_owner(owner)
