"""What a training pod needs beside its container: shared memory, secrets, sidecars, limits, and rights by grant."""

from dataclasses import replace
from math import ceil
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.adoption.decide.amounts import pod_amounts
from tessera.binder.decide.pods import pod_of
from tessera.domain.devices.resources import role_need
from tessera.domain.entities import SurplusPod
from tessera_schemas.base import Json
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.job import JobSpec, Resources, Template
from tessera_schemas.work.pod_template import EnvSource, InitContainer
from tests.builders import GIB, job_spec, placement, role
from tests.unit.binder.binder_builders import job, node, run

SIDECAR = {
    "name": "metrics",
    "image": "exporter:1",
    "sidecar": True,
    "resources": {"cpu_milli": 250, "memory_bytes": GIB // 4},
}
SECRET = {"kind": "secret", "name": "wandb", "key": "api-key"}


def made(spec: JobSpec) -> Json:
    return pod_of(job(spec), run(spec), 0, spec, 7, node())


def spec_with(gpus: int = 1, resources: dict[str, Any] | None = None, **template: Any) -> JobSpec:
    asked = {"cpu_milli": 1000, "memory_bytes": 64 * GIB, "gpus": gpus} | (resources or {})
    worker = role().model_copy(
        update={
            "resources": Resources.model_validate(asked),
            "template": Template.model_validate({"image": "train:1", **template}),
        }
    )
    return job_spec(worker)


def container(spec: JobSpec) -> Json:
    found: Json = made(spec)["spec"]["containers"][0]
    return found


def at_shared_memory(spec: JobSpec) -> list[Json]:
    """The volumes that are mounted where programs share memory."""
    names = [mount["name"] for mount in container(spec)["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    return [volume for volume in made(spec)["spec"]["volumes"] if volume["name"] in names]


def test_a_gpu_pod_shares_memory_up_to_half_of_what_it_has() -> None:
    (volume,) = at_shared_memory(spec_with())
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": str(32 * GIB)}


def test_a_pod_without_a_gpu_has_the_container_runtimes_shared_memory() -> None:
    assert at_shared_memory(spec_with(gpus=0)) == []


def test_a_job_says_itself_how_much_memory_is_shared() -> None:
    asked = {"kind": "memory", "mount_path": "/dev/shm", "size_bytes": 48 * GIB}
    (volume,) = at_shared_memory(spec_with(volumes=[asked]))
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": str(48 * GIB)}


def test_a_variable_comes_from_a_secret_or_a_config_map() -> None:
    cached = {"kind": "config_map", "name": "cluster", "key": "mirror", "optional": True}
    env = container(spec_with(env={"LR": "1"}, env_from={"WANDB_API_KEY": SECRET, "MIRROR": cached}))["env"]
    assert {"name": "LR", "value": "1"} in env
    of_secret = {"name": "wandb", "key": "api-key", "optional": False}
    assert {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": of_secret}} in env
    of_map = {"name": "cluster", "key": "mirror", "optional": True}
    assert {"name": "MIRROR", "valueFrom": {"configMapKeyRef": of_map}} in env


def test_no_secret_says_who_a_pod_is_or_which_devices_it_has() -> None:
    names = ("TESSERA_RANK", "NVIDIA_VISIBLE_DEVICES", "CUDA_DISABLE_CONTROL")
    env = container(spec_with(gpus=0, env_from=dict.fromkeys(names, SECRET)))["env"]
    assert not [entry for entry in env if "valueFrom" in entry]


def test_a_secret_stands_in_the_place_of_a_launchers_variable() -> None:
    asked = spec_with(env_from={"MASTER_PORT": SECRET}).model_copy(update={"launcher": "torchrun"})
    (entry,) = [entry for entry in container(asked)["env"] if entry["name"] == "MASTER_PORT"]
    assert "valueFrom" in entry


def test_a_sidecar_goes_on_beside_the_role_and_sees_its_volumes_but_no_gpu() -> None:
    volume = {"kind": "claim", "name": "data", "mount_path": "/data"}
    spec = spec_with(volumes=[volume], init_containers=[SIDECAR])
    (sidecar,) = made(spec)["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["volumeMounts"] == container(spec)["volumeMounts"]
    assert sidecar["resources"]["limits"] == {"cpu": "250m", "memory": str(GIB // 4)}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in sidecar["env"]
    assert sidecar["securityContext"] == container(spec)["securityContext"]


def test_a_folder_of_a_claim_is_mounted_alone() -> None:
    volume = {"kind": "claim", "name": "data", "mount_path": "/mnt", "sub_path": "sets/a", "read_only": True}
    whole = {"kind": "claim", "name": "data", "mount_path": "/data"}
    spec = spec_with(volumes=[volume, whole])
    assert container(spec)["volumeMounts"][:2] == [
        {"name": "volume-0", "mountPath": "/mnt", "readOnly": True, "subPath": "sets/a"},
        {"name": "volume-1", "mountPath": "/data", "readOnly": False},
    ]
    claims = [made["persistentVolumeClaim"] for made in made(spec)["spec"]["volumes"][:2]]
    assert claims == [{"claimName": "data"}] * 2


def test_an_init_container_runs_to_its_end() -> None:
    (first,) = made(spec_with(init_containers=[SIDECAR | {"sidecar": False}]))["spec"]["initContainers"]
    assert "restartPolicy" not in first


def test_a_pod_may_use_more_than_it_asks_for_up_to_its_limits() -> None:
    spec = spec_with(resources={"cpu_limit_milli": 4000, "memory_limit_bytes": 96 * GIB})
    found = container(spec)["resources"]
    assert found["requests"] == {"cpu": "1000m", "memory": str(64 * GIB), "nvidia.com/gpu": "1"}
    assert found["limits"] == {"cpu": "4000m", "memory": str(96 * GIB), "nvidia.com/gpu": "1"}
    (volume,) = at_shared_memory(spec)
    assert volume["emptyDir"]["sizeLimit"] == str(48 * GIB)


def test_ports_are_told() -> None:
    ports = [{"port": 8080, "name": "metrics"}, {"port": 9000, "protocol": "UDP"}]
    assert container(spec_with(ports=ports))["ports"] == [
        {"containerPort": 8080, "protocol": "TCP", "name": "metrics"},
        {"containerPort": 9000, "protocol": "UDP"},
    ]


def test_what_is_granted_reaches_the_pod_and_only_the_roles_container_may_pin_memory() -> None:
    spec = spec_with(ipc_lock=True, host_network=True, runtime_class="nvidia", init_containers=[SIDECAR])
    body = made(spec)["spec"]
    assert (body["hostNetwork"], body["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert body["runtimeClassName"] == "nvidia"
    assert container(spec)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert body["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


BEFORE = st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(1, 5 * GIB)), max_size=4)


@given(BEFORE, st.integers(1, 5000), st.integers(1, 5 * GIB))
def test_the_job_needs_exactly_what_kubernetes_counts_for_its_pod(
    before: list[tuple[bool, int, int]], cpu: int, memory: int
) -> None:
    containers = [
        InitContainer.model_validate(
            SIDECAR | {"name": f"c{n}", "sidecar": side, "resources": {"cpu_milli": c, "memory_bytes": m}}
        ).model_dump()
        for n, (side, c, m) in enumerate(before)
    ]
    spec = spec_with(resources={"cpu_milli": cpu, "memory_bytes": memory}, init_containers=containers)
    amounts, need = pod_amounts(made(spec)["spec"]), role_need(spec.roles[0]).need
    assert (ceil(amounts["cpu"] * 1000), amounts["memory"]) == (need.cpu_milli, need.memory_bytes)


def test_a_source_of_a_variable_is_the_same_in_bytes() -> None:
    source = EnvSource.model_validate(SECRET)
    assert EnvSource.model_validate_json(source.to_bytes()) == source


def test_a_value_may_refer_to_what_tessera_says_of_the_pod() -> None:
    """The kubelet fills in `$(NAME)` from variables that stand before it."""
    spec = spec_with(env={"SLURM_JOB_ID": "$(TESSERA_JOB_ID)", "TESSERA_RANK": "9"})
    names = [entry["name"] for entry in container(spec)["env"]]
    assert names.index("TESSERA_JOB_ID") < names.index("SLURM_JOB_ID")
    assert len(names) == len(set(names))
    assert {"name": "TESSERA_RANK", "value": "0"} in container(spec)["env"]


def test_a_pod_knows_the_number_of_its_copy_of_each_group() -> None:
    head, worker = (
        each.model_copy(update={"name": name, "replicas": pods})
        for (each,), name, pods in ((spec_with().roles, "head", 2), (spec_with().roles, "worker", 8))
    )
    team = RoleGroup(name="a-team", pods={"head": 1, "worker": 4})
    spec = job_spec(head, worker, groups=(team, RoleGroup(name="pair", within="a-team", pods={"worker": 2})))
    found = []
    for rank in range(10):
        pod = pod_of(job(spec), run(spec), rank, spec, 7, node())
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        found.append((env.get("TESSERA_GROUP_A_TEAM"), env.get("TESSERA_GROUP_PAIR")))
    assert found[:2] == [("0", None), ("1", None)]
    assert found[2:] == [("0", "0"), ("0", "0"), ("0", "1"), ("0", "1"), ("1", "2"), ("1", "2"), ("1", "3"), ("1", "3")]


def test_copies_that_a_run_grew_by_go_on_counting_where_its_gang_ends() -> None:
    sizes = (("head", 1, 3), ("worker", 4, 12))
    head, worker = (
        each.model_copy(update={"name": name, "replicas": pods, "max_replicas": most})
        for (each,), (name, pods, most) in zip((spec_with().roles,) * 2, sizes, strict=True)
    )
    team = RoleGroup(name="team", pods={"head": 1, "worker": 4})
    spec = job_spec(head, worker, groups=(team, RoleGroup(name="pair", within="team", pods={"worker": 2})))
    roles = ["head", *["worker"] * 4] * 3
    grown = tuple(SurplusPod(placement(rank, role=roles[rank]), 0, f"uid-{rank}") for rank in range(5, 15))
    found = []
    for rank in range(15):
        pod: Json = pod_of(job(spec), run(spec, extra=grown), rank, spec, 7, node())
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        found.append((env["TESSERA_GROUP_TEAM"], env.get("TESSERA_GROUP_PAIR")))
    pairs = [(str(number // 2), str(number)) for number in range(6) for _ in (1, 2)]
    assert found == [("0", None), *pairs[:4], ("1", None), *pairs[4:8], ("2", None), *pairs[8:]]


def test_a_task_of_an_array_knows_its_array_and_index() -> None:
    spec = spec_with()
    task = replace(job(spec), task_of="a" * 20, task=7)
    pod: Json = pod_of(task, run(spec), 0, spec, 7, node())
    env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
    assert (env["TESSERA_ARRAY_ID"], env["TESSERA_ARRAY_TASK"]) == ("a" * 20, "7")
