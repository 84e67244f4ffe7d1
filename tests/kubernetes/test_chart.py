"""
The chart by itself, on a real API server: everything that it can render is taken by server-side validation; what its
values may not say is refused by name; it gives the rights that the code names, for the services that there are.
"""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.reclamation.settings import ReclamationSettings
from tessera_local.servers import find_nats_server
from tessera_schemas.cluster.cluster_roles import Right
from tessera_schemas.shard.services import BY_NAME, COMPACT, LAYOUTS, SEPARATE, SERVICES, SPECS, Replicas
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
POLICY = "NetworkPolicy"
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
    "migChanges": True,
    "fencing": {"enabled": True, "secret": "power", "networks": ["10.9.0.0/24"]},
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
FOLLOWERS = LAYOUTS[COMPACT]["followers"]
LAYOUT = {name: {"layout": name} for name in (SEPARATE, COMPACT)}
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
    keda = binaries.sources("keda-operator") / "config" / "crd" / "bases"
    for name in ("keda.sh_scaledobjects.yaml", "keda.sh_triggerauthentications.yaml"):
        kubectl("apply", "--server-side", "-f", str(keda / name))
    kubectl("apply", "-f", "-", stdin=json.dumps(CERTIFICATES))
    for name in ("scaledobjects.keda.sh", "certificates.cert-manager.io"):
        kubectl("wait", "--for=condition=Established", f"crd/{name}")
    return own_plane


@pytest.mark.parametrize(
    "values",
    [
        {},
        SERVICES_OF_MINE,
        EVERYTHING,
        HPA,
        KEDA,
        {"networkPolicy.enabled": False, "flowSchema": False},
        EVERYTHING | LAYOUT[COMPACT] | {"webhooks.secret": "hooks"},
    ],
    ids=[
        *("defaults", "servers of one's own", "everything on", "HPA and a certificate", "KEDA", "policies off"),
        "everything on, compact",
    ],
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
        ("layout", "single"),
        ("followers.autoscaling", {"kind": "hpa"}),
        ("typo", 1),
    ],
)
def test_a_value_that_may_not_be_is_refused_by_its_name(path: str, value: object) -> None:
    said = helm("template", RELEASE, str(CHART), f"--set-json={path}={json.dumps(value)}")
    assert said.returncode != 0
    assert path.split(".")[-1] in said.stderr, said.stderr
    assert "values don't meet the specifications of the schema" in said.stderr


@pytest.mark.parametrize(
    ("path", "value"),
    [("services.queueing.replicas", 1), ("services.admission.autoscaling.kind", "keda")],
)
def test_a_service_that_shares_a_process_has_no_replicas_of_its_own(path: str, value: object) -> None:
    said = helm("template", RELEASE, str(CHART), "--set=layout=compact", f"--set-json={path}={json.dumps(value)}")
    assert said.returncode != 0
    assert path.rpartition(".")[0].removesuffix(".autoscaling") in said.stderr
    assert "set followers.replicas" in said.stderr
    assert rendered({path: value})


def test_helm_finds_nothing_wrong_in_either_layout() -> None:
    for layout in LAYOUT:
        said = helm("lint", str(CHART), "--strict", "--set", f"layout={layout}")
        assert said.returncode == 0, said.stdout


def test_nobody_reads_metrics_but_whom_the_values_name() -> None:
    def lets_in(values: Json) -> dict[str, Any]:
        policies = [each for each in documents(rendered(values)) if each["kind"] == "NetworkPolicy"]
        return {each["metadata"]["name"]: each["spec"].get("ingress") for each in policies}

    assert lets_in({})["tessera"] is None
    watch = [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]
    assert lets_in({"networkPolicy.metricsFrom": watch})["tessera"] == [{"ports": [{"port": 8080}], "from": watch}]
    compact = lets_in({"networkPolicy.metricsFrom": watch} | LAYOUT[COMPACT])
    assert compact["tessera"] == [{"ports": [{"port": 8080, "endPort": 8079 + len(FOLLOWERS)}], "from": watch}]


@pytest.mark.parametrize("layout", LAYOUT)
def test_a_process_may_reach_what_one_of_its_services_may(layout: str) -> None:
    found = {one["metadata"]["name"]: one["spec"]["podSelector"] for one in documents(rendered(LAYOUT[layout]), POLICY)}

    def of(policy: str) -> set[str]:
        selector = found[f"{RELEASE}{policy}"]
        named = [set(one["values"]) for one in selector.get("matchExpressions", ())]
        return set.union(*named) if named else {selector["matchLabels"]["app.kubernetes.io/component"]}

    processes = LAYOUTS[layout]
    with_token = {one for one, of in processes.items() if any(BY_NAME[name].calls_cluster for name in of)}
    calling_out = {one for one, of in processes.items() if any(BY_NAME[name].calls_out for name in of)}
    assert of("") == {*processes, "init", "roll-over", "uninstall"}
    assert of("-api-server") == {*with_token, "init", "uninstall"}
    assert of("-notifier") == calling_out


def test_those_that_share_a_process_keep_their_credentials_and_are_ready_together() -> None:
    """One Deployment in place of six; the other three are as they are apart."""
    apart, together = (
        {(one["kind"], one["metadata"]["name"].removeprefix(f"{RELEASE}-")): one for one in documents(rendered(values))}
        for values in ({}, LAYOUT[COMPACT] | {"followers.replicas": 3})
    )
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert {name for each, name in together if each == kind} - {"nats"} == set(LAYOUTS[COMPACT])
        for name in set(LAYOUTS[COMPACT]) - {"followers"}:
            assert together[kind, name] == apart[kind, name]
    made = {kind: one["spec"] for (kind, name), one in together.items() if name == "followers" and "spec" in one}
    pod = made["Deployment"]["template"]["spec"]
    (container,) = pod["containers"]
    assert made["Deployment"]["replicas"] == 3
    assert made["PodDisruptionBudget"]["selector"] == made["Deployment"]["selector"]
    assert container["args"][:2] == ["run", "+".join(FOLLOWERS)]
    assert {"name": "TESSERA_CREDENTIALS_FILE", "value": "/credentials/{service}/identity.json"} in container["env"]
    (volume,) = [one["projected"]["sources"] for one in pod["volumes"] if one["name"] == "credentials"]
    assert {one["secret"]["items"][0]["path"]: one["secret"]["name"] for one in volume} == {
        f"{name}/identity.json": f"{RELEASE}-{name}" for name in FOLLOWERS
    }
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/startupz", "readiness": "/readyz/process", "liveness": "/livez"}


@pytest.mark.parametrize("layout", LAYOUT)
def test_prometheus_finds_a_target_by_the_name_of_each_service(layout: str) -> None:
    (job,) = yaml.safe_load((CHART.parents[1] / "prometheus.yaml").read_text())["scrape_configs"]
    found = dict[str, int]()
    for one in documents(rendered({"gateway.enabled": True, **LAYOUT[layout]}), "Deployment", "StatefulSet"):
        template = one["spec"]["template"]
        for container in template["spec"]["containers"]:
            for port in container.get("ports", ()):
                labels = target(job["relabel_configs"], template["metadata"]["labels"], port["name"])
                if labels is not None:
                    found[labels["service"]] = port["containerPort"]
    assert found == {name: 8080 + number for process in LAYOUTS[layout].values() for number, name in enumerate(process)}


def target(rules: list[Json], labels: Json, port: str) -> Json | None:
    """The labels that Prometheus gives what it finds at a port of a pod; None of what it leaves."""
    prefix = "__meta_kubernetes_pod_label_"
    found = {prefix + re.sub(r"\W", "_", name): value for name, value in labels.items()}
    found |= {"__meta_kubernetes_pod_container_port_name": port, "__meta_kubernetes_pod_name": "one"}
    for rule in rules:
        value = ";".join(found[label] for label in rule["source_labels"])
        fits = re.fullmatch(rule.get("regex", ".*"), value)
        if rule.get("action") == "keep" and not fits:
            return None
        if fits and "target_label" in rule:
            found[rule["target_label"]] = value
    return found


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


def test_reclamation_is_told_where_and_how_health_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the chart's values say of it is read by the service itself, tables within a line among it."""
    told = {
        "utilisation_exporter": "http://{node}:9400/metrics",
        "health_query": '{__name__=~"DCGM_.*"}',
        "health_conditions": {"RackPower=False": "node_condition", "Fans": "gpu_throttled"},
        "health_looks": 5,
        "health_gone_seconds": 600,
    }
    options = {"endpoint": "https://minio.example", "region": "eu"}
    logs = {"url": "s3://logs/tessera", "options": options}
    gateway = {"enabled": True, "allowedHosts": ["a.example"], "logs": logs}
    made = documents(rendered({"services.reclamation.settings": told, "gateway": gateway}), "ConfigMap")
    (text,) = (one["data"]["tessera.toml"] for one in made if "tessera.toml" in one["data"])
    assert tomllib.loads(text)["gateway"]["logs_store_options"] == options
    (tmp_path / "tessera.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", "")
    found = ReclamationSettings()
    assert found.model_dump(mode="json", include={*told}) == told


def test_what_is_no_setting_of_a_service_is_refused() -> None:
    said = helm("template", RELEASE, str(CHART), '--set-json=services.reclamation.settings={"a": {"b": {"c": 1}}}')
    assert (said.returncode != 0, "services.reclamation.settings" in said.stderr.replace("/", ".")) == (True, True)


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


@pytest.mark.parametrize("layout", LAYOUT)
@pytest.mark.parametrize("with_options", [True, False])
def test_each_account_has_the_rights_that_its_services_declare_and_no_others(with_options: bool, layout: str) -> None:
    options = {f"{value}.enabled": with_options for spec in SPECS for value in spec.tenant_options}
    values = {"tenants": ["demo"], **options, **LAYOUT[layout]}
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
    accounts = {name.removeprefix(f"{RELEASE}-") for kind, name in found if kind == "ServiceAccount"}
    assert accounts - {"init"} == set(LAYOUTS[layout])
    for process, services in LAYOUTS[layout].items():
        specs = [BY_NAME[name] for name in services]
        account = {"kind": "ServiceAccount", "name": f"{RELEASE}-{process}", "namespace": NAMESPACE}
        bound = [one["roleRef"]["name"] for one in bindings if account in one["subjects"]]
        assert frozenset().union(*map(of, bound)) == frozenset().union(*(spec.cluster_rights() for spec in specs))
        has_token = found["ServiceAccount", account["name"]]["automountServiceAccountToken"]
        assert has_token is any(spec.calls_cluster for spec in specs)
        writes = [one for (kind, _), one in found.items() if kind == "RoleBinding" and account in one["subjects"]]
        inside = [one["roleRef"]["name"] for one in writes if one["metadata"]["namespace"] == "demo"]
        optional = [role.rights() for spec in specs for role in spec.tenant_options.values() if with_options]
        declared = frozenset().union(*(spec.tenant_rights() for spec in specs), *optional)
        assert frozenset().union(*map(of, inside)) == declared


def test_in_the_compact_layout_no_service_gains_a_right_but_to_read_what_reclamation_reads() -> None:
    assert [name for name in FOLLOWERS if BY_NAME[name].calls_cluster] == ["reclamation"]
    assert not BY_NAME["reclamation"].changes_cluster


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
