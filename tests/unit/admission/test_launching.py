"""What `launcher: steps` asks of a job, and of the installation; each that is missing is named."""

from typing import Any

import pytest

from tessera.admission.decide.launching import advise, not_launched
from tessera.admission.decide.outcome import Origin, judge_tenant_command
from tessera.admission.decide.policy import AdmissionPolicy, Pools, tree_of
from tessera.domain.devices.empty_nodes import empty_node
from tessera_schemas.config import Config
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import Role, Template
from tessera_schemas.text.reading import read_tenant_command
from tessera_schemas.work.pod_template import STEPS_LAUNCHERS
from tests.builders import config_body, job_spec, node_seen, role
from tests.unit.admission.admission_world import changed, encoded

SIDECAR = {"name": "tessera-steps", "image": "x", "resources": {"cpu_milli": 1, "memory_bytes": 1}}


def started(name: str = "worker", command: tuple[str, ...] = ("train",), **fields: Any) -> Role:
    template = {"image": "train:1", "command": command} | fields.pop("template", {})
    return role(name, **fields).model_copy(update={"template": Template.model_validate(template)})


def against(*roles: Role, has_steps: bool = True, launcher: str = "steps") -> list[tuple[str, str]]:
    return [(one.code, one.field) for one in not_launched(job_spec(*roles, launcher=launcher), has_steps)]


def test_a_job_that_says_its_command_is_taken_in() -> None:
    assert against(started(replicas=2)) == []
    assert against(started(), started("other", command=())) == []
    assert against(started(), started("other")) == []


def test_an_installation_without_the_image_says_so_and_who_mends_it() -> None:
    assert against(started(), has_steps=False) == [("NotSupportedYet", "launcher")]
    (reason,) = not_launched(job_spec(started(), launcher="steps"), has_steps=False)
    assert "steps_image" in reason.detail


@pytest.mark.parametrize("launcher", ["plain", "torchrun", "accelerate", "jax"])
def test_of_other_launchers_nothing_is_asked(launcher: str) -> None:
    assert against(started(command=()), has_steps=False, launcher=launcher) == []


def test_jax_does_not_grow_and_needs_no_steps() -> None:
    assert against(started(max_replicas=4), has_steps=False, launcher="jax") == [
        ("InvalidField", "roles[0].max_replicas")
    ]
    assert against(started(max_replicas=4), has_steps=False, launcher="accelerate") == []


REFUSED = {
    "the image's own command": ((started(command=()),), "roles[0].template.command"),
    "a command that would never run": ((started(), started("b", command=("x",))), "roles[1].template.command"),
    "a job that grows": ((started(max_replicas=4),), "roles[0].max_replicas"),
    "the node's network": ((started(template={"host_network": True}),), "roles[0].template.host_network"),
    "a role called like our container": ((started("tessera-steps"),), "roles[0]"),
    "a container called like ours": ((started(template={"init_containers": (SIDECAR,)}),), "roles[0]"),
    **{
        f"a volume at {path}": (
            (started(template={"volumes": ({"kind": "empty", "mount_path": path},)}),),
            "roles[0].template.volumes[0].mount_path",
        )
        for path in ("/tessera", "/tessera/", "//tessera/bin", "/tessera-key", "/job/hostfile")
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_be_as_meant_is_refused_by_the_name_of_the_field(what: str) -> None:
    roles, field = REFUSED[what]
    assert against(*roles) == [("InvalidField", field)]


def test_a_volume_beside_ours_is_fine() -> None:
    assert against(started(template={"volumes": ({"kind": "empty", "mount_path": "/tessera-data"},)})) == []


@pytest.mark.parametrize("launcher", STEPS_LAUNCHERS)
def test_of_each_launcher_by_steps_the_same_is_asked(launcher: str) -> None:
    (reason,) = not_launched(job_spec(started(command=()), launcher=launcher), has_steps=True)
    assert (reason.field, reason.detail.split(" runs")[0]) == ("roles[0].template.command", f"launcher: {launcher}")


@pytest.mark.parametrize("launcher", STEPS_LAUNCHERS)
def test_who_submits_is_told_the_way(launcher: str) -> None:
    command = read_tenant_command(encoded(changed("spec.launcher", launcher)))
    answer = judge_tenant_command(command, Origin("main", "lab", 1), AdmissionPolicy()).answer
    (detail,) = [reason.detail for reason in answer.reasons if reason.field == "launcher"]
    assert "steps_image" in detail


TREE = tree_of(Config(version=1, body=config_body()))
EIGHT, ONE = empty_node(node_seen("eight", gpus=8)), empty_node(node_seen("one", gpus=1))


@pytest.mark.parametrize(
    ("pods", "fewer"), [(2, "1 of 2"), (8, "1 of 8"), (16, "2 of 8"), (12, "2 of 6"), (14, "2 of 7"), (9, "3 of 3")]
)
def test_pods_of_one_gpu_are_told_what_a_pod_per_node_gains(pods: int, fewer: str) -> None:
    (note,) = advise(job_spec(started(replicas=pods, gpus=1), launcher="torchrun"), TREE, [ONE, EIGHT])
    assert note.startswith(f"{pods} pods of one GPU reach each other's GPUs by sockets alone: {fewer} GPUs would")


@pytest.mark.parametrize(
    ("launcher", "fields", "nodes"),
    [
        ("steps", {"replicas": 8, "gpus": 1}, [EIGHT]),
        ("torchrun", {"replicas": 1, "gpus": 1}, [EIGHT]),
        ("torchrun", {"replicas": 8, "gpus": 2}, [EIGHT]),
        ("torchrun", {"replicas": 8, "gpus": 0}, [EIGHT]),
        ("torchrun", {"replicas": 8, "gpus": 1}, [ONE]),
        ("torchrun", {"replicas": 11, "gpus": 1}, [EIGHT]),
        ("torchrun", {"replicas": 8, "gpus": 1}, []),
    ],
)
def test_who_would_gain_nothing_is_told_nothing(launcher: str, fields: dict[str, int], nodes: list[Any]) -> None:
    assert list(advise(job_spec(started(**fields), launcher=launcher), TREE, nodes)) == []


def test_the_answer_to_a_submit_says_it_and_the_job_is_as_it_was_sent() -> None:
    asked = changed("spec.launcher", "torchrun")
    asked["spec"]["roles"][0] |= {"replicas": 8}
    asked["spec"]["roles"][0]["resources"] |= {"gpus": 1}
    policy = AdmissionPolicy(1, TREE, Pools([EIGHT]))
    outcome = judge_tenant_command(read_tenant_command(encoded(asked)), Origin("main", "lab", 1), policy)
    assert isinstance(outcome.fact, JobAdmitted)
    assert outcome.fact.spec.pods() == 8
    assert outcome.answer.notes[-1].startswith("8 pods of one GPU")
