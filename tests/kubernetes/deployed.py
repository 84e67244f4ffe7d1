"""The Helm chart on a real API server: what it renders, applied by kubectl, used by its services' accounts."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tessera_schemas.shard.services import SEPARATE
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "tessera"
NAMESPACE, RELEASE = "tessera-system", "tessera"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SECONDS = 240.0


@dataclass(frozen=True)
class Kubectl:
    plane: ControlPlane

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints; what it complains of is raised."""
        command = [str(binaries.find("kubectl")), f"--kubeconfig={self.plane.kubeconfig()}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What it says, whether it succeeds or not."""
    command = [str(binaries.find("helm")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def rendered(values: Mapping[str, Any] | None = None, *arguments: str, chart: Path = CHART) -> str:
    """The manifests that these values make."""
    return _rendered(json.dumps(values or {}), arguments, chart)


@cache
def _rendered(values: str, arguments: tuple[str, ...], chart: Path) -> str:
    """By JSON, every value keeps its type."""
    said = [f"--set-json={key}={json.dumps(value)}" for key, value in json.loads(values).items()]
    done = helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *said, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str, *kinds: str) -> list[dict[str, Any]]:
    """The objects of a manifest, of these kinds if any are named."""
    return [one for one in yaml.safe_load_all(text) if one and (not kinds or one["kind"] in kinds)]


def nats_of_the_chart(values: Mapping[str, Any]) -> tuple[str, str]:
    """Configuration of its NATS servers, and what each of their containers is given as ROUTES."""
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents(rendered(values))}
    container = found["StatefulSet", f"{RELEASE}-nats"]["spec"]["template"]["spec"]["containers"][0]
    (routes,) = [one["value"] for one in container["env"] if one["name"] == "ROUTES"]
    return found["ConfigMap", f"{RELEASE}-nats"]["data"]["nats.conf"], routes


def add_namespace(plane: ControlPlane, labels: Mapping[str, str] = RESTRICTED) -> None:
    """The namespace of the services, by Pod Security as the installation has it."""
    meta = {"name": NAMESPACE, "labels": dict(labels)}
    Kubectl(plane)("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}))


def deploy(plane: ControlPlane, tenants: Iterable[str] = (), layout: str = SEPARATE, **more: Any) -> Kubectl:
    """
    The accounts and rights of the services, and their Deployments, whose pods nothing schedules; `more` are values.

    The Jobs stay out: without kubelets that run anything they would be tried again and again.
    """
    kubectl = Kubectl(plane)
    add_namespace(plane)
    values = {"tenants": list(tenants), "layout": layout, **more}
    wanted = [one for one in documents(rendered(values)) if one["kind"] != "Job"]
    kubectl("apply", "--namespace", NAMESPACE, "-f", "-", stdin=yaml.safe_dump_all(wanted))
    return kubectl


def let_in(plane: ControlPlane, tenant: str) -> None:
    """A tenant's namespace, ready for pods, in which the binder may write as the chart lets it."""
    labels = {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant, "labels": labels}}
    bindings = documents(rendered({"tenants": [tenant]}), "RoleBinding")
    wanted = [namespace, *(one for one in bindings if one["metadata"].get("namespace") == tenant)]
    Kubectl(plane)("apply", "-f", "-", stdin=yaml.safe_dump_all(wanted))
    plane.wait_for_namespace(tenant)


def token_of(plane: ControlPlane, service: str) -> str:
    return plane.service_account_token(NAMESPACE, f"{RELEASE}-{service}")


def attributes(resource: str, verb: str, namespace: str) -> dict[str, str]:
    group, _, rest = resource.partition("/") if "." in resource.partition("/")[0] else ("", "", resource)
    if rest.startswith(("batch/", "apps/", "policy/")):
        group, _, rest = rest.partition("/")
    kind, _, sub = rest.partition("/")
    return {"group": group, "resource": kind, "subresource": sub, "verb": verb, "namespace": namespace}


def may(plane: ControlPlane, service: str, resource: str, verb: str, namespace: str) -> bool:
    """Whether the API server lets a service's account do so by now."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:tessera-{service}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": attributes(resource, verb, namespace),
        },
    }
    answer = plane.api().call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
