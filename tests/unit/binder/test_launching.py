"""How pods of a run find one another: names that DNS takes, and torchrun's variables."""

import re
from typing import Any

import pytest

from tessera.binder.decide.pods import pod_of
from tessera.binder.launchers.naming import PORT, service_name, service_of
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import RUN_LABEL, pod_name
from tessera_schemas.job import REPLICAS_MAX, JobSpec, Template
from tests.builders import job_spec, role
from tests.unit.binder.binder_builders import JOB, RUN, job, node, run

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LEADER = f"{RUN}-0.run-{RUN}"


def torchrun(*roles: Any, **more: Any) -> JobSpec:
    return job_spec(*roles, launcher="torchrun", **more)


def pod(spec: JobSpec, rank: int = 0) -> dict[str, Any]:
    return pod_of(job(spec), run(spec), rank, spec, 7, node())


def environment(spec: JobSpec, rank: int = 0) -> dict[str, str]:
    (container,) = pod(spec, rank)["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def of_launcher(spec: JobSpec, rank: int = 0) -> dict[str, str]:
    ours = re.compile(r"PET_|MASTER_|RANK|WORLD_SIZE|NODE_RANK|LOCAL_")
    return {name: value for name, value in environment(spec, rank).items() if ours.match(name)}


def test_every_pod_of_a_torchrun_gang_knows_rank_0_its_own_place_and_how_many_there_are() -> None:
    spec = torchrun(role(replicas=3, gpus=4))
    assert of_launcher(spec, rank=2) == {
        "MASTER_ADDR": LEADER,
        "MASTER_PORT": "29500",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "NODE_RANK": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": LEADER,
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": f"{LEADER}:29500",
        "PET_RDZV_ID": RUN,
    }


def test_an_elastic_gang_meets_between_its_smallest_and_largest_size_without_ranks() -> None:
    spec = torchrun(role(replicas=2, min_replicas=2, max_replicas=5, gpus=1))
    first, second = of_launcher(spec, 0), of_launcher(spec, 1)
    assert first["PET_NNODES"] == "2:5"
    assert first["PET_RDZV_BACKEND"] == "c10d"
    assert (first["PET_RDZV_CONF"], second["PET_RDZV_CONF"]) == ("is_host=1", "is_host=0")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "PET_NODE_RANK"} & first.keys()


def test_roles_of_one_job_are_one_group_and_each_pod_has_a_process_for_each_of_its_gpus() -> None:
    spec = torchrun(role("leader", gpus=1), role("worker", replicas=2, gpus=8))
    said = [of_launcher(spec, rank) for rank in range(3)]
    assert [one["PET_NNODES"] for one in said] == ["3", "3", "3"]
    assert [one["RANK"] for one in said] == ["0", "1", "2"]
    assert [one["PET_NPROC_PER_NODE"] for one in said] == ["1", "8", "8"]


def test_a_pod_of_several_shares_has_a_process_for_each_of_their_gpus() -> None:
    shares = torchrun(role(gpus=0, gpu_milli=500, gpu_parts=3))
    assert of_launcher(shares)["PET_NPROC_PER_NODE"] == "3"


@pytest.mark.parametrize("asked", [{"gpus": 0}, {"gpus": 0, "gpu_milli": 500}], ids=["no GPU", "a share of one"])
def test_a_pod_without_whole_gpus_has_one_process(asked: dict[str, int]) -> None:
    assert of_launcher(torchrun(role(**asked)))["PET_NPROC_PER_NODE"] == "1"


def test_what_a_job_says_of_its_launcher_stays() -> None:
    worker = role().model_copy(update={"template": Template(image="train:1", env={"PET_NPROC_PER_NODE": "auto"})})
    assert of_launcher(torchrun(worker))["PET_NPROC_PER_NODE"] == "auto"


def test_accelerate_launch_has_the_variables_of_torchrun_which_it_calls() -> None:
    worker = role(replicas=2, gpus=4)
    assert of_launcher(job_spec(worker, launcher="accelerate"), 1) == of_launcher(torchrun(worker), 1)


def test_a_process_of_jax_knows_rank_0_its_own_number_and_its_gpus() -> None:
    spec = job_spec(role(replicas=3, gpus=4), role("cpu", gpus=0), launcher="jax")
    said = [{k: v for k, v in environment(spec, rank).items() if k.startswith("JAX_")} for rank in (2, 3)]
    common = {"JAX_COORDINATOR_ADDRESS": f"{LEADER}:29500", "JAX_NUM_PROCESSES": "4"}
    assert said[0] == common | {"JAX_PROCESS_ID": "2", "JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}
    assert said[1] == common | {"JAX_PROCESS_ID": "3"}


@pytest.mark.parametrize("launcher", [None, "plain"])
def test_a_plain_job_has_neither_names_nor_variables(launcher: str | None) -> None:
    spec = job_spec(role(replicas=2), launcher=launcher)
    assert of_launcher(spec) == {}
    assert not {"hostname", "subdomain"} & pod(spec)["spec"].keys()


def test_a_pod_is_called_by_its_own_name_below_the_service_of_its_run() -> None:
    spec = torchrun(role(replicas=2))
    assert pod(spec, 1)["spec"]["hostname"] == pod(spec, 1)["metadata"]["name"] == pod_name(RUN, 1)
    assert pod(spec, 1)["spec"]["subdomain"] == service_of(job(spec), RUN, 7)["metadata"]["name"]


def test_every_name_is_a_dns_label_that_begins_as_it_must_whatever_the_job_is_called() -> None:
    longest = run_id("2" * 20, 999_999)
    assert DNS_LABEL.fullmatch(service_name(longest))
    assert len(pod_name(longest, REPLICAS_MAX)) <= 63


def test_the_service_is_headless_and_names_pods_of_its_run_alone_before_they_are_ready() -> None:
    service = service_of(job(), RUN, 7)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {RUN_LABEL: RUN}
    assert [port["port"] for port in service["spec"]["ports"]] == [PORT]
    assert service["metadata"]["namespace"] == "lab"
    assert service["metadata"]["labels"][RUN_LABEL] == RUN
    assert RUN.startswith(JOB)
