"""
Controllers of others as processes beside a control plane: JobSet's, LeaderWorkerSet's, KubeRay's, the MPI operator and
Kubeflow's Trainer.

Their definitions and webhooks are those of their own modules; a webhook is called where the process listens, by a
certificate of the control plane's.
"""

import base64
import json
import os
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera_local.free_port import free_port
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import Kubectl
from tests.servers import Server

Json = dict[str, Any]
STARTUP_SECONDS = 180.0
AGAIN = ("sh", "-c", 'trap "kill \\$of; exit" TERM; while :; do "$@" & of=$!; wait $of; sleep 1; done', "again")
"""As its Deployment would: one whose lease is not renewed in time, on a machine that is busy, ends by itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one listens, and the folder of what it reads."""

    folder: Path
    health: int
    webhooks: int

    @property
    def certificates(self) -> Path:
        """Where the library of most controllers looks for them below the folder of temporary files."""
        return self.folder / "k8s-webhook-server" / "serving-certs"


@dataclass(frozen=True, slots=True)
class Controller:
    """
    `definitions` and `webhooks` are paths in its module; `words` are its arguments, of which a file may be made.
    `health` is the port of a program that can be told no other. `beside` are objects of its own manifests that it has
    to find.
    """

    program: str
    definitions: str
    words: Callable[[Place], Sequence[str]]
    webhooks: str = ""
    health: int = 0
    beside: Sequence[Json] = ()


def _by_a_file(api: str) -> Callable[[Place], Sequence[str]]:
    """Arguments of one whose configuration is an object of this API, with certificates that somebody else made."""

    def words(place: Place) -> Sequence[str]:
        body = {
            "apiVersion": api,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": place.webhooks, "certDir": str(place.certificates)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{place.health}"},
        }
        file = place.folder / "configuration.yaml"
        file.write_text(yaml.safe_dump(body))
        return [f"--config={file}", "--leader-elect=false", "--metrics-bind-address=0"]

    return words


JOB_SET = Controller(
    "jobset",
    "config/components/crd/bases",
    _by_a_file("config.jobset.x-k8s.io/v1alpha1"),
    "config/components/webhook/manifests.yaml",
)
LEADER_WORKER_SET = Controller(
    "lws", "config/crd/bases", _by_a_file("config.lws.x-k8s.io/v1alpha1"), "config/webhook/manifests.yaml"
)


def _kuberays(place: Place) -> Sequence[str]:
    probe = f"--health-probe-bind-address=127.0.0.1:{place.health}"
    return [probe, "--metrics-addr=0", "--enable-leader-election=false"]


KUBERAY = Controller("kuberay", "config/crd/bases", _kuberays)
MPI_OPERATOR = Controller(
    "mpi-operator",
    "manifests/base/kubeflow.org_mpijobs.yaml",
    lambda _: ["--lock-namespace=kube-system", "--kube-api-qps=50", "--kube-api-burst=100"],
    health=8080,
)
TRAINERS_CERTIFICATE = Path("/tmp/k8s-webhook-server/serving-certs/tls.crt")
"""Trainer makes its certificates itself, and waits for this file, which a kubelet would mount; any will do."""


def _trainers(place: Place) -> Sequence[str]:
    TRAINERS_CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
    TRAINERS_CERTIFICATE.touch()
    return [
        f"--health-probe-bind-address=127.0.0.1:{place.health}",
        f"--webhook-server-port={place.webhooks}",
        "--metrics-bind-address=0",
    ]


def _object(api_version: str, kind: str, name: str, **meta: str) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **meta}}


TRAINER = Controller(
    "trainer",
    "manifests/base/crds",
    _trainers,
    "manifests/base/webhook/manifests.yaml",
    beside=(
        _object("v1", "Namespace", "kubeflow-system"),
        _object("v1", "Secret", "kubeflow-trainer-webhook-cert", namespace="kubeflow-system"),
        # It writes its own authority into this one; its webhooks stand under another name, with the control plane's.
        _object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validator.trainer.kubeflow.org"),
    ),
)


@contextmanager
def at_work(controller: Controller, plane: ControlPlane, directory: Path, **environment: str) -> Iterator[Server]:
    """The controller until the body ends; its kinds are served and its webhooks answer. Skips where it is not here."""
    try:
        program, sources = binaries.find(controller.program), binaries.sources(controller.program)
    except binaries.Unavailable as error:
        if os.environ.get("CI") and controller.program not in binaries.BUILT_BY_NAME:
            raise
        pytest.skip(str(error))
    if controller.health and _is_taken(controller.health):
        pytest.skip(f"port {controller.health}, the only one that {controller.program} listens on, is taken")
    place = Place(directory / controller.program, controller.health or free_port(), free_port())
    place.certificates.mkdir(parents=True)
    made = plane.directory / "certificates"
    for name, source in (("tls.crt", "serving.crt"), ("tls.key", "serving.key")):
        shutil.copy(made / source, place.certificates / name)
    kubectl = Kubectl(plane)
    definitions = _files(sources / controller.definitions)
    kubectl("apply", "--server-side", *definitions)
    wait_until(lambda: _are_served(kubectl, definitions), f"kinds of {controller.program} are served")
    for one in controller.beside:
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(one))
    environment |= {"KUBECONFIG": str(plane.kubeconfig()), "TMPDIR": str(place.folder)}
    said = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *said, *AGAIN, str(program), *controller.words(place)]
    server = Server(command, place.folder, place.health, _is_ready, STARTUP_SECONDS, ends_with_us=True)
    try:
        server.start()
        if controller.webhooks:
            hooks = _registered(sources / controller.webhooks, controller.program, place, plane.ca_file)
            wait_until(lambda: all(map(_answers, _urls(hooks))), f"webhooks of {controller.program} answer")
            kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(hooks))
        yield server
    finally:
        server.stop()


def _files(definitions: Path) -> list[str]:
    """The file, or all of the folder that are named as definitions are: a kustomization beside them is no object."""
    files = [definitions] if definitions.is_file() else sorted(definitions.glob("*_*.yaml"))
    return [f"--filename={file}" for file in files]


def _are_served(kubectl: Kubectl, definitions: Sequence[str]) -> bool:
    """Whether the API server has taken these definitions in: some controllers end where their kind is not there yet."""
    found = json.loads(kubectl("get", *definitions, "-o", "json"))
    said = [one.get("status", {}).get("conditions") or () for one in found.get("items", [found])]
    return all(any((one["type"], one["status"]) == ("Established", "True") for one in each) for each in said)


def _registered(manifest: Path, name: str, place: Place, ca: Path) -> list[Json]:
    """Its webhooks under a name of their own, each called at its port on this machine."""
    hooks: list[Json] = [one for one in yaml.safe_load_all(manifest.read_text()) if one]
    bundle = base64.b64encode(ca.read_bytes()).decode()
    for hook in hooks:
        hook["metadata"]["name"] = f"{name}-{hook['metadata']['name']}"
        for one in hook["webhooks"]:
            path = one["clientConfig"]["service"]["path"]
            one["clientConfig"] = {"url": f"https://127.0.0.1:{place.webhooks}{path}", "caBundle": bundle}
    return hooks


def _urls(hooks: Sequence[Json]) -> list[str]:
    return [one["clientConfig"]["url"] for hook in hooks for one in hook["webhooks"]]


def _answers(url: str) -> bool:
    """Whether somebody is at that path: a manager listens before all of its webhooks are there."""
    try:
        urllib.request.urlopen(url, data=b"{}", timeout=2, context=ssl._create_unverified_context())
    except urllib.error.HTTPError as error:
        return error.code != 404
    except OSError:
        return False
    return True


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(health: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 404 and _is_alive(health)
    except OSError:
        return False


def _is_alive(health: int) -> bool:
    """Of a program that tells of its life alone."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
