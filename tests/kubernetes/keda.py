"""KEDA itself beside a control plane: its operator, and the server of the external metrics that autoscalers read."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tessera_local.free_port import free_port
from tests.kubernetes import binaries
from tests.kubernetes.commands import CONTROLLERS
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import Kubectl
from tests.servers import Server

Json = dict[str, Any]
NAMESPACE, API = "keda", "external.metrics.k8s.io"
AUTOSCALING = (
    f"controllers={CONTROLLERS},horizontal-pod-autoscaler-controller",
    "horizontal-pod-autoscaler-sync-period=1s",
    "horizontal-pod-autoscaler-downscale-stabilization=1s",
)
"""Flags of kube-controller-manager: with autoscalers, and with ones that do not wait for minutes."""
OWN_NAMESPACE = ("POD_NAMESPACE", "KEDA_CLUSTER_OBJECT_NAMESPACE")
STARTUP_SECONDS = 180.0


@contextmanager
def keda(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Both programs at work, and their API served by the API server. Raises Unavailable."""
    programs = [str(binaries.find(name)) for name in ("keda-operator", "keda-adapter")]
    kubectl = Kubectl(plane)
    kubectl("apply", "--server-side", "-f", str(binaries.sources("keda-operator") / "config" / "crd" / "bases"))
    plane.add_namespace(NAMESPACE)
    certificates = folder / "certificates"
    certificates.mkdir()
    made = plane.directory / "certificates"
    for name, source in (("ca.crt", "ca.crt"), ("tls.crt", "serving.crt"), ("tls.key", "serving.key")):
        shutil.copy(made / source, certificates / name)
    grpc, health, served, metrics = (free_port() for _ in range(4))
    kubeconfig = str(plane.kubeconfig())
    operator = [
        *(f"--kubeconfig={kubeconfig}", f"--cert-dir={certificates}", "--enable-prometheus-metrics=false"),
        *(f"--health-probe-bind-address=127.0.0.1:{health}", f"--metrics-service-bind-address=127.0.0.1:{grpc}"),
    ]
    adapter = [
        *(f"--{use}kubeconfig={kubeconfig}" for use in ("", "lister-", "authentication-", "authorization-")),
        *(f"--cert-dir={certificates}", f"--tls-cert-file={certificates}/tls.crt"),
        *(f"--tls-private-key-file={certificates}/tls.key", f"--client-ca-file={certificates}/ca.crt"),
        *("--bind-address=127.0.0.1", f"--secure-port={served}", f"--port={metrics}"),
        f"--metrics-service-address=localhost:{grpc}",
    ]
    servers = [_server(program, words, folder) for program, words in zip(programs, (operator, adapter), strict=True)]
    try:
        for server in servers:
            server.start()
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_registration(served)))
        wait_until(lambda: _is_served(plane), f"{API} is served", STARTUP_SECONDS)
        yield
    finally:
        for server in servers:
            server.stop()


def _server(program: str, arguments: list[str], folder: Path) -> Server:
    own = folder / Path(program).name
    own.mkdir()
    command = ["env", "WATCH_NAMESPACE=", *(f"{name}={NAMESPACE}" for name in OWN_NAMESPACE), program, *arguments]
    return Server(command, own, 0, lambda _: True, startup_seconds=STARTUP_SECONDS, ends_with_us=True)


def _registration(port: int) -> list[Json]:
    """KEDA's own, but for where its server listens: on this machine, to which a name leads."""
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "keda-metrics-apiserver", "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    api: Json = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{API}"},
        "spec": {
            "group": API,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "keda-metrics-apiserver", "namespace": NAMESPACE, "port": port},
        },
    }
    return [service, api]


def _is_served(plane: ControlPlane) -> bool:
    found = plane.api().get(f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{API}")
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)
