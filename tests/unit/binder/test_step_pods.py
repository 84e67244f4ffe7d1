"""Pods whose first starts processes in the others: what the step runner needs is there, and is in nobody's way."""

import base64
from typing import Any

import pytest

from tessera.binder.decide.pods import pod_of
from tessera.binder.launchers.naming import service_name, service_of
from tessera.binder.launchers.port import Surroundings
from tessera.binder.launchers.registry import launcher_of
from tessera.binder.launchers.steps import key_of
from tessera_local.cluster.machines.capacity import request_of
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec, Template
from tessera_schemas.work.pod_template import STEPS_LAUNCHERS, InitContainer
from tests.builders import job_spec, role
from tests.unit.binder.binder_builders import RUN, job, node, run

AROUND = Surroundings("registry.example.com/steps:1", "Always", "cluster.example")
TRAIN = Template(image="train:1", command=("sh", "-c"), args=("srun $(HOSTS)", "x"))
FETCH = InitContainer.model_validate({
    "name": "fetch", "image": "fetch:1", "resources": {"cpu_milli": 1, "memory_bytes": 1}
})  # fmt: skip


def spec_with(*roles: Any, launcher: str = "steps", **template: Any) -> JobSpec:
    worker = role(replicas=2).model_copy(update={"template": TRAIN.model_copy(update=template)})
    return job_spec(*(roles or (worker,)), launcher=launcher)


def body(spec: JobSpec | None = None, rank: int = 0) -> Json:
    spec = spec or spec_with()
    found: Json = pod_of(job(spec), run(spec), rank, spec, 7, node(), AROUND)["spec"]
    return found


def environment(spec: JobSpec, rank: int = 0) -> dict[str, str]:
    (container,) = body(spec, rank)["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_every_pod_starts_the_runner_with_the_command_of_the_job() -> None:
    for rank in (0, 1):
        (main,) = body(rank=rank)["containers"]
        assert main["command"] == ["/tessera/bin/tessera-steps", "pod", "--", "sh", "-c"]
        assert main["args"] == ["srun $(HOSTS)", "x"]
        assert main["image"] == "train:1"


def test_pods_of_further_roles_have_the_command_of_the_first() -> None:
    leader = role("leader").model_copy(update={"template": TRAIN})
    spec = spec_with(leader, role("worker"))
    assert body(spec, 1)["containers"][0]["command"] == body(spec, 0)["containers"][0]["command"]
    assert body(spec, 1)["containers"][0]["args"] == ["srun $(HOSTS)", "x"]


def test_the_runner_comes_before_what_the_job_does_before_its_command() -> None:
    ours, theirs = body(spec_with(init_containers=(FETCH,)))["initContainers"]
    assert theirs["name"] == "fetch"
    assert (ours["image"], ours["imagePullPolicy"]) == ("registry.example.com/steps:1", "Always")
    assert ours["command"] == ["/tessera-steps", "install", "/tessera"]
    assert ours["volumeMounts"] == [{"name": "steps", "mountPath": "/tessera"}]


def test_the_program_is_in_memory_and_the_key_in_a_secret_and_the_container_writes_to_neither() -> None:
    found = body(spec_with(init_containers=(FETCH,)))
    volumes = {volume.pop("name"): volume for volume in found["volumes"]}
    assert volumes["steps"] == {"emptyDir": {"medium": "Memory", "sizeLimit": str(16 * 2**20)}}
    assert volumes["steps-key"]["secret"]["secretName"] == service_name(RUN)
    mounts = {mount["mountPath"]: mount for mount in found["containers"][0]["volumeMounts"]}
    assert mounts["/tessera"]["readOnly"]
    assert mounts["/tessera-key"]["readOnly"]
    assert not any("tessera" in mount["mountPath"] for mount in found["initContainers"][1]["volumeMounts"])


def test_the_container_that_brings_the_runner_passes_the_restricted_level() -> None:
    security = body()["initContainers"][0]["securityContext"]
    assert security["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(
    "asked", [{"cpu_milli": 1, "memory_bytes": 1}, {}], ids=["a pod of nearly nothing", "a usual one"]
)
def test_a_pod_takes_no_more_of_its_node_than_without_the_runner(asked: dict[str, int]) -> None:
    worker = role(**asked).model_copy(update={"template": TRAIN})
    with_it, without = (
        pod_of(job(spec), run(spec), 0, spec, 7, node(), AROUND)
        for spec in (spec_with(worker), spec_with(worker, launcher="torchrun"))
    )
    assert request_of(with_it) == request_of(without)
    installer = with_it["spec"]["initContainers"][0]["resources"]
    assert installer["requests"] == installer["limits"]


def test_the_name_that_a_pod_has_of_itself_is_known_in_the_others() -> None:
    found = body()
    assert found["hostname"] == f"{RUN}-0"
    assert found["dnsConfig"] == {"searches": [f"{service_name(RUN)}.lab.svc.cluster.example"]}


def test_the_runner_is_told_where_the_others_are_and_a_job_cannot_tell_it_otherwise() -> None:
    said = environment(spec_with(env={"TESSERA_STEPS_KEY": "/tmp/mine", "OWN": "1"}))
    assert said["TESSERA_STEPS_PORT"] == "29600"
    assert said["TESSERA_STEPS_KEY"] == "/tessera-key/key"
    assert said["TESSERA_STEPS_HOSTS"] == f"{RUN}-{{rank}}.{service_name(RUN)}"
    assert said["OWN"] == "1"


def test_the_lists_of_the_runs_pods_are_made_of_their_names_and_their_whole_gpus() -> None:
    leader = role("leader").model_copy(
        update={"template": TRAIN.model_copy(update={"env": {"SLURM_TASKS_PER_NODE": "4"}})}
    )
    spec = spec_with(leader, role("worker", replicas=2, gpus=8))
    (installer,) = body(spec)["initContainers"]
    assert {entry["name"]: entry["value"] for entry in installer["env"]} == {
        "TESSERA_STEPS_HOSTS": f"{RUN}-{{rank}}.{service_name(RUN)}",
        "TESSERA_STEPS_SLOTS": "1(x1),8(x2)",
        "TESSERA_WORLD_SIZE": "3",
        "SLURM_TASKS_PER_NODE": "4",
    }


@pytest.mark.parametrize("launcher", STEPS_LAUNCHERS)
def test_launchers_that_stand_on_steps_have_the_runner_and_a_key(launcher: str) -> None:
    assert launcher_of(spec_with(launcher=launcher)).has_key
    assert body(spec_with(launcher=launcher))["containers"][0]["command"][:3] == [
        "/tessera/bin/tessera-steps",
        "pod",
        "--",
    ]


def test_pods_of_other_launchers_are_as_they_were() -> None:
    for launcher in ("plain", "torchrun"):
        found = body(spec_with(launcher=launcher))
        assert found["containers"][0]["command"] == ["sh", "-c"]
        assert not {"initContainers", "dnsConfig"} & found.keys()


def test_the_key_has_the_name_and_labels_of_the_service_that_owns_it() -> None:
    service = service_of(job(), RUN, 7)
    secret = key_of(service, "uid-of-the-service", bytes(range(32)))
    (owner,) = secret["metadata"].pop("ownerReferences")
    assert secret["metadata"] == service["metadata"]
    assert owner == {"apiVersion": "v1", "kind": "Service", "name": service_name(RUN), "uid": "uid-of-the-service"}
    assert base64.b64decode(secret["data"]["key"]) == bytes(range(32))
    assert secret["immutable"]
