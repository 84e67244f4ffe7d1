"""The pods of jobs before a real API server (dry runs): what admission lets through it takes, at the level it says."""

from pathlib import Path
from typing import Any

import pytest

from tessera.admission.decide.pods import malformed
from tessera.binder.decide.pods import pod_of
from tessera.binder.launchers.port import Surroundings
from tessera.kernel.ports import ApiError
from tessera_schemas.job import JobSpec, Resources, Template
from tests.builders import GIB, job_spec, role
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.unit.binder.binder_builders import job, node, run

NAMESPACE = "pods-of-jobs"
SECRET = {"kind": "secret", "name": "wandb", "key": "api-key"}
SIDECAR = {"name": "logs", "image": "logs:1", "sidecar": True, "resources": {"cpu_milli": 100, "memory_bytes": GIB}}
FULL: dict[str, Any] = {
    "run_as_user": 1000,
    "volumes": [
        {"kind": "memory", "mount_path": "/dev/shm", "size_bytes": GIB},
        {"kind": "empty", "mount_path": "/tmp"},
    ],
    "env_from": {"WANDB_API_KEY": SECRET, "MIRROR": SECRET | {"kind": "config_map", "optional": True}},
    "init_containers": [SIDECAR, SIDECAR | {"name": "fetch", "sidecar": False}],
    "ports": [{"port": 8080, "name": "metrics"}, {"port": 8080, "protocol": "UDP"}],
}
GRANTED: dict[str, Any] = {"ipc_lock": True, "host_network": True, "runtime_class": "nvidia"}


@pytest.fixture(scope="module")
def plane_with_namespace(plane: ControlPlane) -> ControlPlane:
    plane.add_namespace(NAMESPACE)
    plane.add_namespace(f"{NAMESPACE}-granted")
    at = f"/api/v1/namespaces/{NAMESPACE}"
    plane.api().patch(at, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    plane.api().create(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    )
    return plane


def spec_with(resources: dict[str, Any] | None = None, role_says: dict[str, Any] | None = None, **said: Any) -> JobSpec:
    """One role of one GPU; what starts with `job_` is the job's own."""
    own = {name.removeprefix("job_"): said.pop(name) for name in list(said) if name.startswith("job_")}
    asked = {"cpu_milli": 1000, "memory_bytes": 8 * GIB, "gpus": 1} | (resources or {})
    worker = role().model_copy(
        update={
            "resources": Resources.model_validate(asked),
            "template": Template.model_validate({"image": "train:1", "run_as_user": 1000, **said}),
        }
    )
    whole = job_spec(worker).model_dump() | own
    return JobSpec.model_validate(whole | {"roles": [whole["roles"][0] | (role_says or {})]})


def refusal(plane: ControlPlane, spec: JobSpec, namespace: str = NAMESPACE) -> str:
    """What the API server has against the job's first pod; "" when it would make it."""
    pod = pod_of(job(spec), run(spec), 0, spec, 7, node(), Surroundings("steps:1"))
    pod["metadata"]["namespace"] = namespace
    try:
        plane.api().call("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
    except ApiError as error:
        return f"{error.status} {error.message}"
    return ""


def test_all_that_is_granted_by_default_passes_the_restricted_level(plane_with_namespace: ControlPlane) -> None:
    assert refusal(plane_with_namespace, spec_with(**FULL)) == ""
    checkpoints = {"interval_seconds": 60, "notice_seconds": 30}
    assert refusal(plane_with_namespace, spec_with(**FULL, job_checkpoint=checkpoints, job_launcher="torchrun")) == ""
    assert refusal(plane_with_namespace, spec_with(**FULL, command=("train",), job_launcher="steps")) == ""


def test_what_needs_a_grant_needs_a_namespace_that_lets_it_through(plane_with_namespace: ControlPlane) -> None:
    limits = {"cpu_limit_milli": 2000, "memory_limit_bytes": 9 * GIB}
    granted = spec_with(limits, **{**FULL, "ports": []}, **GRANTED)
    assert refusal(plane_with_namespace, granted, f"{NAMESPACE}-granted") == ""
    assert "violates PodSecurity" in refusal(plane_with_namespace, spec_with(ipc_lock=True))


AT_X = {"kind": "empty", "mount_path": "/x"}
BAD = {
    "two volumes at one place": spec_with(volumes=[AT_X, AT_X]),
    "a volume where the notice is": spec_with(
        volumes=[AT_X | {"mount_path": "/etc/tessera"}], job_checkpoint={"interval_seconds": 60}
    ),
    "a label in no domain": spec_with(job_labels={"a..b/c": "d"}),
    "an annotation in no domain": spec_with(annotations={"a..b/c": "d"}),
    "a node selector in no domain": spec_with(role_says={"node_selector": {"a..b/c": "d"}}),
    "a toleration in no domain": spec_with(role_says={"tolerations": [{"key": "a..b/c"}]}),
    "an affinity in no domain": spec_with(role_says={"affinity": [{"key": "a..b/c", "operator": "Exists"}]}),
    "a device in no domain": spec_with({"devices": {"a..b/c": 1}}),
    **{f"a key {key} of a secret": spec_with(env_from={"A": SECRET | {"key": key}}) for key in (".", "..", "..x")},
    "a key .. of a sidecar": spec_with(init_containers=[SIDECAR | {"env_from": {"A": SECRET | {"key": ".."}}}]),
    "a device of too long a domain": spec_with({"devices": {f"{'a' * 245}/c": 1}}),
}
FINE = {
    "an environment of odd values": spec_with(env={"A": "$(B)", "_b9": "", "C": "é\n"}),
    "a device of a long domain": spec_with({"devices": {f"{'a' * 60}.{'b' * 60}/c": 1}}),
    "a claim in a deep place": spec_with(volumes=[{"kind": "claim", "name": "a.b-c", "mount_path": "/a b/c"}]),
    "a volume below another": spec_with(volumes=[AT_X, AT_X | {"mount_path": "/x/y"}]),
    "one CPU thousandth and one byte": spec_with({"cpu_milli": 1, "memory_bytes": 2}),
    "as much as can be counted": spec_with({"cpu_milli": 2**53 - 1, "memory_bytes": 2**53 - 1}),
    "a toleration of the empty value": spec_with(role_says={"tolerations": [{"key": "own", "operator": "Equal"}]}),
    "an upper-case annotation": spec_with(annotations={"example.com/Team": "x" * 1000}),
    "a key that begins with a dot": spec_with(env_from={"A": SECRET | {"key": ".x..y"}}),
    "a share of a GPU": spec_with({"gpus": 0, "gpu_milli": 500}),
}


@pytest.mark.parametrize("what", BAD)
def test_what_the_api_server_refuses_admission_refuses_first(what: str, plane_with_namespace: ControlPlane) -> None:
    assert refusal(plane_with_namespace, BAD[what]).startswith("422")
    assert malformed(BAD[what])


@pytest.mark.parametrize("what", FINE)
def test_what_the_api_server_takes_is_admitted(what: str, plane_with_namespace: ControlPlane) -> None:
    assert refusal(plane_with_namespace, FINE[what]) == ""
    assert malformed(FINE[what]) == []


# -- what training needs beyond `baseline` -----------------------------------------------------------------------------


TRAINING = "pods-of-training"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "training-pods.yaml"
SHM = {"name": "shm", "hostPath": {"path": "/dev/shm"}}


def user_pod(context: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod as its user writes it; `context` is its only container's security context."""
    container = {"name": "main", "image": "train:1", "securityContext": context}
    return {"metadata": {"name": "train"}, "spec": {"schedulerName": "tessera", "containers": [container], **spec}}


LOCKS = {"capabilities": {"add": ["IPC_LOCK"]}}
TRAINS = {
    "nothing": user_pod({}),
    "RDMA": user_pod(LOCKS),
    "the node's network": user_pod(LOCKS, hostNetwork=True, hostIPC=True, volumes=[SHM]),
    "a memory volume": user_pod({}, volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}]),
}
DOES_NOT_TRAIN = {  # this API server lets nobody have privileged containers, so that rule alone is not tried
    "another capability": user_pod({"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}),
    "the node's processes": user_pod({}, hostPID=True),
    "a path of the node": user_pod({}, volumes=[SHM | {"hostPath": {"path": "/"}}]),
    "an init container with a capability": user_pod(
        {},
        initContainers=[{"name": "first", "image": "x", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
    ),
    "no seccomp": user_pod({"seccompProfile": {"type": "Unconfined"}}),
    "no seccomp for the pod": user_pod({}, securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "a sysctl": user_pod({}, securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}),
}


def against(plane: ControlPlane, pod: dict[str, Any], namespace: str) -> str:
    try:
        plane.api().call("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
    except ApiError as error:
        return f"{error.status} {error.message}"
    return ""


@pytest.fixture(scope="module")
def training_namespace(plane: ControlPlane) -> str:
    """A namespace as docs/install.md makes one for training."""
    plane.add_namespace(TRAINING)
    plane.api().apply(EXAMPLE)
    labels = {"tessera.io/pods": "training", "pod-security.kubernetes.io/enforce": "privileged"}
    plane.api().patch(f"/api/v1/namespaces/{TRAINING}", {"metadata": {"labels": labels}})
    wait_until(lambda: bool(against(plane, DOES_NOT_TRAIN["a sysctl"], TRAINING)), "the policy is in force")
    return TRAINING


@pytest.mark.parametrize("what", TRAINS)
def test_training_pods_pass_where_their_label_is(what: str, plane: ControlPlane, training_namespace: str) -> None:
    assert against(plane, TRAINS[what], training_namespace) == ""


@pytest.mark.parametrize("what", DOES_NOT_TRAIN)
def test_what_training_does_not_need_is_refused_there(what: str, plane: ControlPlane, training_namespace: str) -> None:
    assert "tessera-training-pods" in against(plane, DOES_NOT_TRAIN[what], training_namespace)


def test_other_namespaces_are_left_to_pod_security(plane_with_namespace: ControlPlane, training_namespace: str) -> None:
    assert training_namespace != NAMESPACE
    assert "violates PodSecurity" in against(plane_with_namespace, TRAINS["RDMA"], NAMESPACE)
    assert against(plane_with_namespace, DOES_NOT_TRAIN["the node's processes"], f"{NAMESPACE}-granted") == ""
