"""
The chart by itself, on a real API server: everything that it can render is taken by server-side validation; what its
values may not say is refused by name; it gives the rights that the code names, for the services that there are.
"""

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera_local.servers import find_nats_server
from tessera_schemas.cluster.cluster_roles import Right
from tessera_schemas.shard.services import SERVICES, SPECS, Replicas
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import (
    CHART,
    NAMESPACE,
    RELEASE,
    Kubectl,
    add_namespace,
    documents,
    helm,
    nats_of_the_chart,
    rendered,
)

Json = dict[str, Any]
SCALED = ("admission", "preemption", "reclamation", "binder", "gateway")
SERVICES_OF_MINE = {
    "nats": {"enabled": False, "url": "tls://nats.example.com:4443", "monitorUrl": "https://nats.example.com"},
    "redis": {"enabled": False, "url": "rediss://redis.example.com:6380/0"},
    "caSecret": "our-authority",
}
EVERYTHING: Json = {
    "image": {"registry": "registry.example.com/team", "perService": False, "tag": "1", "pullSecrets": ["pull"]},
    "shards": ["main", "east"],
    "tenants": ["demo"],
    "hami": True,
    "rollOver.claim": "backup",
    "gateway": {"enabled": True, "allowedHosts": ["tessera.example.com"], "tlsSecret": "gateway-tls"},
    "nats.tls.certManager": {"enabled": True, "issuerRef": {"name": "ours"}},
    "nats.clientsFrom": [{"namespaceSelector": {"matchLabels": {"team": "ci"}}}],
    "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}],
    "networkPolicy.apiServer": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
    "settings": {"log_level": "debug", "lease_seconds": 3},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
}
HPA = {f"services.{service}.autoscaling.kind": "hpa" for service in SCALED} | {"nats.tls.secret": "tessera-nats-tls"}
KEDA = {f"services.{service}.autoscaling.kind": "keda" for service in SCALED}
CERTIFICATES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "certificates.cert-manager.io"},
    "spec": {
        "group": "cert-manager.io",
        "names": {"kind": "Certificate", "plural": "certificates"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def prepared(own_plane: ControlPlane) -> ControlPlane:
    """A cluster with the definitions of KEDA, as its module has them, and a stand-in for those of cert-manager."""
    kubectl = Kubectl(own_plane)
    add_namespace(own_plane)
    own_plane.add_namespace("demo")
    keda = binaries.keda_definitions()
    for name in ("keda.sh_scaledobjects.yaml", "keda.sh_triggerauthentications.yaml"):
        kubectl("apply", "--server-side", "-f", str(keda / name))
    kubectl("apply", "-f", "-", stdin=json.dumps(CERTIFICATES))
    for name in ("scaledobjects.keda.sh", "certificates.cert-manager.io"):
        kubectl("wait", "--for=condition=Established", f"crd/{name}")
    return own_plane


@pytest.mark.parametrize(
    "values",
    [{}, SERVICES_OF_MINE, EVERYTHING, HPA, KEDA, {"networkPolicy.enabled": False, "flowSchema": False}],
    ids=["defaults", "servers of one's own", "everything on", "HPA and a certificate", "KEDA", "policies off"],
)
def test_the_api_server_takes_everything_that_the_chart_renders(prepared: ControlPlane, values: Json) -> None:
    kubectl = Kubectl(prepared)
    taken = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered(values))
    assert taken.count("(server dry run)") == len(documents(rendered(values)))


def test_what_is_applied_makes_pods_that_pod_security_restricted_lets_in(prepared: ControlPlane) -> None:
    kubectl = Kubectl(prepared)
    kubectl("apply", "--validate=strict", "-f", "-", stdin=rendered(EVERYTHING, "--no-hooks"))
    expected = 2 * 2 * len(SERVICES) + 3 + 1 + 1  # two of each service in two shards, NATS, Redis, the Job of init

    def pods() -> list[Json]:
        return prepared.api().items(f"/api/v1/namespaces/{NAMESPACE}/pods")

    wait_until(lambda: len(pods()) == expected, f"{expected} pods are made")
    assert not any(pod["spec"].get("hostNetwork") for pod in pods())
    kubectl("delete", "--wait=false", "-f", "-", stdin=rendered(EVERYTHING, "--no-hooks"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("services.scheduler.replicas", 9),
        ("services.scheduler.autoscaling", {"kind": "hpa", "min": 1, "max": 2}),
        ("services.binder.autoscaling.kind", "sometimes"),
        ("services.accounting", {}),
        ("shards", []),
        ("shards", ["a.b"]),
        ("nats.replicas", 2),
        ("nats.url", "http://nats"),
        ("redis.storage.size", "lots"),
        ("settings.nats_password", "x"),
        ("gateway.allowedHosts", "tessera.example.com"),
        ("steps.pullPolicy", "often"),
        ("image.digests.binder", "latest"),
        ("gateway.trustedProxies", ["proxy.example.com"]),
        ("typo", 1),
    ],
)
def test_a_value_that_may_not_be_is_refused_by_its_name(path: str, value: object) -> None:
    said = helm("template", RELEASE, str(CHART), f"--set-json={path}={json.dumps(value)}")
    assert said.returncode != 0
    assert path.split(".")[-1] in said.stderr, said.stderr
    assert "values don't meet the specifications of the schema" in said.stderr


def test_nobody_reads_metrics_but_whom_the_values_name() -> None:
    def lets_in(values: Json) -> dict[str, Any]:
        policies = [each for each in documents(rendered(values)) if each["kind"] == "NetworkPolicy"]
        return {each["metadata"]["name"]: each["spec"].get("ingress") for each in policies}

    assert lets_in({})["tessera"] is None
    watch = [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]
    assert lets_in({"networkPolicy.metricsFrom": watch})["tessera"] == [{"ports": [{"port": 8080}], "from": watch}]


def test_an_image_is_taken_by_its_digest_where_there_is_one() -> None:
    digest = f"sha256:{'1' * 64}"
    said = rendered({"image.digests": {"binder": digest, "client": digest}})
    assert f"image: tessera-binder:0.4.0@{digest}" in said
    assert "image: tessera-scheduler:0.4.0\n" in said
    one = rendered({"image": {"perService": False, "digests": {"all": digest}}})
    assert one.count(f"image: tessera:0.4.0@{digest}") >= len(SERVICES)


def test_the_gateway_is_told_its_proxies_and_the_bound_of_logs() -> None:
    gateway = {
        "enabled": True,
        "allowedHosts": ["a.example"],
        "trustedProxies": ["10.0.0.0/8"],
        "logs": {"claim": "logs"},
    }
    (settings,) = (
        each
        for each in documents(rendered({"gateway": gateway}))
        if each["kind"] == "ConfigMap" and "tessera.toml" in each["data"]
    )
    told = tomllib.loads(settings["data"]["tessera.toml"])["gateway"]
    assert (told["trusted_proxies"], told["logs_bytes_max"]) == (["10.0.0.0/8"], 4 << 30)


@pytest.mark.parametrize(("part", "missing"), [("nats", "nats.url"), ("redis", "redis.url")])
def test_a_server_that_is_switched_off_and_not_named_is_asked_for(part: str, missing: str) -> None:
    said = helm("template", RELEASE, str(CHART), "--set", f"{part}.enabled=false")
    assert said.returncode != 0
    assert missing in said.stderr


def test_a_ledger_that_would_be_full_before_it_is_rolled_over_is_refused() -> None:
    said = helm("template", RELEASE, str(CHART), "--set", "rollOver.claim=backup,rollOver.largerGib=8")
    assert said.returncode != 0
    assert "rollOver.largerGib" in said.stderr


def test_each_shard_is_rolled_over_as_its_administrator_into_a_backup_of_its_own() -> None:
    (timer,) = [
        one
        for one in documents(rendered({"shards": ["main", "east"], "rollOver.claim": "backup"}))
        if one["kind"] == "CronJob"
    ]
    pod = timer["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        shard = container["name"]
        assert container["args"][:5] == ["ledger", "roll", "/backup", "--shard", shard]
        assert container["args"][7:9] == ["--larger-gib", "4"]
        assert mounts["/backup"]["subPath"] == shard
        secret = volumes[mounts["/identity"]["name"]]["secret"]["secretName"]
        assert secret == f"{RELEASE}-administrator" + ("" if shard == "main" else f"-{shard}")
    assert pod["automountServiceAccountToken"] is False


def test_the_chart_runs_the_services_that_there_are_and_scales_no_leader() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["services"]
    assert tuple(values) == SERVICES
    leaders = {spec.name for spec in SPECS if spec.replicas is Replicas.LEADER}
    assert {name for name, service in values.items() if "autoscaling" not in service} == leaders
    yielding = {spec.name for spec in SPECS if spec.yields}
    assert {name for name, service in values.items() if service["resources"]["requests"]["cpu"] == "100m"} == yielding
    commands = [one["spec"]["template"]["spec"]["containers"][0]["args"] for one in documents(rendered(), "Deployment")]
    assert sorted(args[1] for args in commands) == sorted(SERVICES)


@pytest.mark.parametrize("with_steps", [True, False])
def test_each_account_has_the_rights_that_its_service_declares_and_no_others(with_steps: bool) -> None:
    values = {"tenants": ["demo"], "steps.enabled": with_steps}
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents(rendered(values))}

    def of(role: str) -> frozenset[Right]:
        rules = found["ClusterRole", role]["rules"]
        return frozenset(
            Right(group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        )

    bindings = [one for (kind, _), one in found.items() if kind == "ClusterRoleBinding"]
    for spec in SPECS:
        account = {"kind": "ServiceAccount", "name": f"{RELEASE}-{spec.name}", "namespace": NAMESPACE}
        bound = [one["roleRef"]["name"] for one in bindings if account in one["subjects"]]
        assert frozenset().union(*map(of, bound)) == spec.cluster_rights()
        assert found["ServiceAccount", account["name"]]["automountServiceAccountToken"] is spec.calls_cluster
        writes = [one for (kind, _), one in found.items() if kind == "RoleBinding" and account in one["subjects"]]
        inside = [one["roleRef"]["name"] for one in writes if one["metadata"]["namespace"] == "demo"]
        options = [role.rights() for role in spec.tenant_options.values() if with_steps]
        assert frozenset().union(*map(of, inside)) == spec.tenant_rights().union(*options)


def test_the_chart_runs_the_images_of_this_version() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == project["version"]
    assert images_of({}) == {f"tessera-{service}:{project['version']}" for service in SERVICES}


def test_the_gateway_keeps_logs_in_an_object_store_by_an_image_of_its_own() -> None:
    with_store = images_of({"gateway.logs.url": "s3://logs/main"})
    assert {image.partition(":")[0] for image in with_store - images_of({})} == {"tessera-gateway-logs"}
    assert images_of({"gateway.logs.claim": "logs"}) == images_of({})


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "tessera-steps:{version}"),
        (
            {"image.registry": "example.com/a", "image.tag": "7", "image.perService": False},
            "example.com/a/tessera-steps:7",
        ),
        ({"steps.image": "example.com/ours:1"}, "example.com/ours:1"),
        ({"steps.enabled": False}, None),
    ],
    ids=["by itself", "beside those of the services", "one's own", "off"],
)
def test_services_are_told_the_image_of_the_step_runner(values: Json, image: str | None) -> None:
    version = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]["version"]
    made = {one["metadata"]["name"]: one for one in documents(rendered(values), "ConfigMap")}
    settings = tomllib.loads(made[RELEASE]["data"]["tessera.toml"])
    assert settings.get("steps_image") == (image and image.format(version=version))
    assert settings.get("binder", {}).get("steps_pull_policy") == (image and "IfNotPresent")


def images_of(values: Json) -> set[str]:
    deployments = documents(rendered(values), "Deployment")
    return {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments}


def test_no_value_and_no_rendered_object_has_a_secret_in_it() -> None:
    assert documents(rendered(EVERYTHING), "Secret") == []


def test_the_nats_server_reads_its_configuration_without_tls(tmp_path: Path) -> None:
    config, routes = nats_of_the_chart({})
    (tmp_path / "auth").mkdir()
    (tmp_path / "auth" / "nats-auth.conf").write_text("accounts: {}\n")
    (tmp_path / "nats.conf").write_text(config)
    environment = {"POD_NAME": "nats-0", "ROUTE_PASSWORD": "secret", "ROUTES": routes}
    command = [str(find_nats_server()), "-t", "-c", str(tmp_path / "nats.conf")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert routes.count("nats://route:$(ROUTE_PASSWORD)@tessera-nats-") == 3
