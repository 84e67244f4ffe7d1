"""What pods may have: by grant of the tenant, refused by the name of the field else; and what no API server takes."""

from typing import Any

import pytest

from tessera.admission.decide.outcome import Origin, judge_tenant_command
from tessera.admission.decide.pods import PODS_BYTES_MAX
from tessera.admission.decide.policy import AdmissionPolicy, tree_of
from tessera_schemas.base import Strict
from tessera_schemas.config import Config, ConfigBody, Queue, Tenant
from tessera_schemas.job import JobSpec
from tessera_schemas.text.reading import read_tenant_command
from tessera_schemas.work.pod_template import PodGrants
from tests.unit.admission.admission_world import SPEC, changed, encoded

TEMPLATE, RESOURCES = "spec.roles.0.template", "spec.roles.0.resources"
SIDECAR = {"name": "logs", "image": "logs:1", "sidecar": True, "resources": {"cpu_milli": 1, "memory_bytes": 1}}
SECRET = {"kind": "secret", "name": "wandb", "key": "api-key"}
NOTHING = PodGrants(memory_volumes=False, env_from=False, init_containers=False, ports=False)
EVERYTHING = PodGrants(higher_limits=True, ipc_lock=True, host_network=True, runtime_classes=("nvidia",))


def against(command: Any, grants: PodGrants | None = None) -> list[tuple[str, str, str]]:
    """What admission has against the submit of a tenant with these grants."""
    tenant = Tenant(name="lab", **({} if grants is None else {"pod_grants": grants}))
    body = ConfigBody(tenants=(tenant,), queues=(Queue(name="research"),))
    policy = AdmissionPolicy(1, tree_of(Config(version=1, body=body)))
    answer = judge_tenant_command(read_tenant_command(encoded(command)), Origin("main", "lab", 1), policy).answer
    return [(reason.code, reason.field, reason.detail) for reason in answer.reasons]


def with_template(**fields: Any) -> dict[str, Any]:
    return changed(TEMPLATE, SPEC["roles"][0]["template"] | fields)


def test_a_job_whose_pods_kubernetes_should_not_store_together_is_refused_with_the_way_out() -> None:
    most = PODS_BYTES_MAX // (257 * 1024)
    for pods, refused in ((most, False), (most + 30, True)):
        job = with_template(command=["sh", "-c", *["x" * 32_768] * 8])
        job["spec"]["roles"][0]["replicas"] = pods
        found = against(job)
        assert [code for code, _, _ in found] == (["TooLarge"] if refused else [])
        assert all("volume" in detail for _, _, detail in found)


def with_resources(**fields: Any) -> dict[str, Any]:
    return changed(RESOURCES, SPEC["roles"][0]["resources"] | fields)


MEMORY = {"kind": "memory", "mount_path": "/dev/shm", "size_bytes": 2**30}
GIVEN_TO_ALL = {
    "template.volumes[0].kind": (with_template(volumes=[MEMORY]), "memory_volumes"),
    "template.env_from": (with_template(env_from={"KEY": SECRET}), "env_from"),
    "template.init_containers": (with_template(init_containers=[SIDECAR]), "init_containers"),
    "template.ports": (with_template(ports=[{"port": 80}]), "ports"),
}
BY_GRANT = {
    "template.ipc_lock": (with_template(ipc_lock=True), "ipc_lock"),
    "template.host_network": (with_template(host_network=True), "host_network"),
    "template.runtime_class": (with_template(runtime_class="nvidia"), "runtime_classes"),
    "resources.cpu_limit_milli": (with_resources(cpu_limit_milli=9000), "higher_limits"),
    "resources.memory_limit_bytes": (with_resources(memory_limit_bytes=2**35), "higher_limits"),
}


@pytest.mark.parametrize("field", GIVEN_TO_ALL)
def test_what_gives_no_right_beyond_the_namespace_is_granted_unless_taken_away(field: str) -> None:
    command, grant = GIVEN_TO_ALL[field]
    assert against(command) == []
    assert against(command, NOTHING) == [("NotGranted", f"roles[0].{field}", f"pod_grants.{grant}")]


@pytest.mark.parametrize("field", BY_GRANT)
def test_what_reaches_beyond_the_pod_needs_a_grant(field: str) -> None:
    command, grant = BY_GRANT[field]
    assert against(command) == [("NotGranted", f"roles[0].{field}", f"pod_grants.{grant}")]
    assert against(command, EVERYTHING) == []


def test_a_runtime_class_is_granted_by_its_name() -> None:
    assert against(with_template(runtime_class="kata"), EVERYTHING) == [
        ("NotGranted", "roles[0].template.runtime_class", "pod_grants.runtime_classes")
    ]


def test_all_that_is_not_granted_is_named_at_once() -> None:
    command = with_template(ipc_lock=True, host_network=True, volumes=[MEMORY])
    assert len(against(command, NOTHING)) == 3


def test_the_way_kubernetes_writes_a_field_is_answered_with_ours() -> None:
    ((code, _, detail),) = against(with_template(hostNetwork=True))
    assert (code, detail) == ("ForbiddenField", "with a grant: host_network in the role's template")


@pytest.mark.parametrize("where", ["env_from", "init_containers.0.env", "init_containers.0.env_from"])
def test_no_container_is_shown_other_devices(where: str) -> None:
    value: Any = "all" if where.endswith("env") else SECRET
    fields: dict[str, Any] = {"env_from": {"NVIDIA_VISIBLE_DEVICES": value}}
    if where.startswith("init"):
        fields = {"init_containers": [SIDECAR | {where.rpartition(".")[2]: {"NVIDIA_VISIBLE_DEVICES": value}}]}
    path = where.replace(".0.", "[0].")
    assert [(code, at) for code, at, _ in against(with_template(**fields))] == [
        ("ForbiddenField", f"roles[0].template.{path}.NVIDIA_VISIBLE_DEVICES")
    ]


WRONG = {
    "a memory volume without a size": with_template(volumes=[{"kind": "memory", "mount_path": "/dev/shm"}]),
    "a size of another volume": with_template(volumes=[{"kind": "empty", "mount_path": "/x", "size_bytes": 1}]),
    "a memory volume larger than the memory": with_template(volumes=[MEMORY | {"size_bytes": 2**40}]),
    "a variable from two places": with_template(env={"KEY": "1"}, env_from={"KEY": SECRET}),
    "two init containers of one name": with_template(init_containers=[SIDECAR, SIDECAR]),
    "an init container that is called like the role": with_template(init_containers=[SIDECAR | {"name": "worker"}]),
    "two ports of one number": with_template(ports=[{"port": 80}, {"port": 80, "name": "web"}]),
    "two ports of one name": with_template(ports=[{"port": 80, "name": "web"}, {"port": 81, "name": "web"}]),
    "a name of a port without a letter": with_template(ports=[{"port": 80, "name": "80"}]),
    "ports beside its node's own network": with_template(host_network=True, ports=[{"port": 80}]),
    "a CPU limit below what is asked for": with_resources(cpu_limit_milli=1),
    "a memory limit below what is asked for": with_resources(memory_limit_bytes=1),
    "two volumes at one place": with_template(
        volumes=[{"kind": "empty", "mount_path": "/x"}, {"kind": "empty", "mount_path": "/x/"}]
    ),
    "a volume over the root": with_template(volumes=[{"kind": "empty", "mount_path": "//"}]),
    "a volume at a place with a colon": with_template(volumes=[{"kind": "empty", "mount_path": "/a:b"}]),
    "a volume at a place with steps back": with_template(volumes=[{"kind": "empty", "mount_path": "/a/../b"}]),
    "a claim of no possible name": with_template(volumes=[{"kind": "claim", "mount_path": "/x", "name": "a..b"}]),
    "a label in no domain": changed("spec.labels", {"a..b/c": "d"}),
    "a node selector in no domain": changed("spec.roles.0.node_selector", {"a..b/c": "d"}),
    "a toleration in no domain": changed("spec.roles.0.tolerations", [{"key": "a..b/c"}]),
    "an affinity in no domain": changed("spec.roles.0.affinity", [{"key": "a..b/c", "operator": "Exists"}]),
    "a preference in no domain": changed(
        "spec.roles.0.affinity_preferred",
        [{"weight": 1, "terms": [{"key": "a..b/c", "operator": "Exists"}]}],
    ),
    "a device in no domain": with_resources(devices={"a..b/c": 1}),
    "an annotation in no domain": with_template(annotations={"a..b/c": "d"}),
    "a key that no secret has": with_template(env_from={"A": SECRET | {"key": ".."}}),
    "a key that no secret of a sidecar has": with_template(
        init_containers=[SIDECAR | {"env_from": {"A": SECRET | {"key": "."}}}]
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_api_server_or_node_takes_is_refused_by_the_name_of_its_field(what: str) -> None:
    found = against(WRONG[what], EVERYTHING)
    assert {code for code, _, _ in found} == {"InvalidField"}
    assert all(at for _, at, _ in found)


def test_a_notice_has_its_place_to_itself() -> None:
    command = with_template(volumes=[{"kind": "empty", "mount_path": "/etc/tessera"}])
    assert against(command) == []
    command["spec"]["checkpoint"] = {"interval_seconds": 60}
    ((code, at, _),) = against(command)
    assert (code, at) == ("InvalidField", "roles[0].template.volumes[0].mount_path")


def test_a_grant_that_is_the_default_changes_no_written_configuration() -> None:
    assert Tenant(name="lab", pod_grants=PodGrants()).to_bytes() == b'{"name":"lab"}'
    assert "pod_grants" not in Tenant(name="lab").model_dump(mode="json")


def test_a_spec_that_asks_for_nothing_new_has_the_digest_that_it_had() -> None:
    spec = JobSpec.model_validate(SPEC)
    assert isinstance(spec, Strict)
    assert spec.digest() == "cbf7f30bb5e9cf39b2a7f23825d5c713cb57628d5d669c690a26d363ba158190"
