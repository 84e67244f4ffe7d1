"""
A kubelet for the services' own pods: it runs their containers as processes of this machine, without images.

A pod that is bound to its node gets what its manifest says, and no more: its Secrets and ConfigMaps as files, its
command and variables, and a token of its account, if the account lets it have one. Probes, restarts and deletion go as
Kubernetes has them: a pod is ready by its readiness probe, and leaves once its processes have ended. Pods of one
namespace only; they share this machine's network, so that each process takes a free port for its health.
"""

import base64
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tessera.kernel.ports import ApiError
from tests.kubernetes.api import Api
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.nodes import kwok_node

Json = dict[str, Any]
POLL_SECONDS, RESTART_SECONDS = 0.25, 2.0
NODE = "services"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")


class Kubelet:
    """Runs for as long as the `with` lasts. What pods write is under `directory`."""

    def __init__(self, plane: ControlPlane, directory: Path, namespace: str) -> None:
        self._plane, self._directory, self._namespace = plane, directory, namespace
        self._api = plane.api()
        self._pods: dict[str, RunningPod] = {}
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        node = kwok_node(NODE, gpus=0, taints=[{"key": "services", "effect": "NoSchedule"}])
        node["metadata"]["labels"].pop("type")  # or KWOK would play its pods
        self._api.create(node)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        self._api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {**node["status"], "conditions": [ready]}})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for pod in self._pods.values():
            pod.kill()
        if self._failure is not None and error is None:
            raise self._failure

    def logs(self) -> str:
        """The last lines of every container, for a failure."""
        found = sorted(self._directory.glob("*/*.log"))
        return "\n".join(f"== {log.parent.name}/{log.name}\n{log.read_text()[-1500:]}" for log in found)

    def _work(self) -> None:
        try:
            while not self._stopping.wait(POLL_SECONDS):
                self._renew_lease()
                self._look()
        except BaseException as failure:
            self._failure = failure

    def _renew_lease(self) -> None:
        """Without one the node's condition becomes Unknown, and its pods are evicted."""
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE}}
        spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": micro_now()}
        query = {"fieldManager": "kubelet", "force": "true"}
        body = lease | {"spec": spec}
        self._api.call("PATCH", f"{LEASES}/{NODE}", body, "application/apply-patch+yaml", query)

    def _look(self) -> None:
        there = {pod["metadata"]["uid"]: pod for pod in self._api.items(self._path())}
        for uid, pod in there.items():
            with suppress(ApiError):  # changed or gone meanwhile, or its Secret is not there yet: looked at again
                self._advance(uid, pod)
        for uid in self._pods.keys() - there.keys():
            self._pods.pop(uid).kill()  # deleted by force

    def _advance(self, uid: str, pod: Json) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            running = self._pods.get(uid)
            if running is None or running.has_stopped():
                self._api.delete(f"{self._path()}/{meta['name']}", gracePeriodSeconds=0, preconditions={"uid": uid})
        elif not pod["spec"].get("nodeName"):
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"], "uid": uid}}
            target = {"target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
            self._api.call("POST", f"{self._path()}/{meta['name']}/binding", binding | target)
        elif pod["status"].get("phase") not in ("Succeeded", "Failed"):
            if uid not in self._pods:
                self._pods[uid] = RunningPod.of(self._plane, self._api, self._directory / meta["name"], pod)
            status = self._pods[uid].advance()
            if any(pod["status"].get(key) != value for key, value in status.items()):
                self._api.patch(f"{self._path()}/{meta['name']}/status", {"status": status})

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"


class RunningPod:
    """One pod's processes: its init containers one after the other, then the container."""

    def __init__(self, folder: Path, pod: Json, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, dict(environment)
        self._restarts = pod["spec"].get("restartPolicy", "Always")
        self._waiting: list[Json] = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        self._inits = len(pod["spec"].get("initContainers", ()))
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._not_before = False, 0.0

    @classmethod
    def of(cls, plane: ControlPlane, api: Api, folder: Path, pod: Json) -> "RunningPod":
        """Raises ApiError while something that it mounts is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        spec, namespace = pod["spec"], pod["metadata"]["namespace"]
        mounts = {
            mount["mountPath"]: folder / mount["name"]
            for container in [*spec.get("initContainers", ()), *spec["containers"]]
            for mount in container.get("volumeMounts", ())
            if not mount["mountPath"].startswith("/var/run/secrets")
        }
        for volume in spec.get("volumes", ()):
            _fill(api, namespace, folder / volume["name"], volume, mounts)
        account = spec["serviceAccountName"]
        environment = {"TESSERA_HTTP_PORT": "0", "TESSERA_HTTP_HOST": "127.0.0.1"}
        if any(volume["name"].startswith("kube-api-access-") for volume in spec.get("volumes", ())):  # or it gets none
            token = plane.service_account_token(namespace, account)
            environment["KUBECONFIG"] = str(plane.kubeconfig(account, token))
        running = cls(folder, pod, environment)
        for container in running._waiting:
            container["args"] = [_local(word, mounts) for word in container.get("args", ())]
            container["env"] = [
                one | {"value": _local(one.get("value", ""), mounts)} for one in container.get("env", ())
            ]
        return running

    def advance(self) -> Json:
        """Start what is due; the status that the pod has now."""
        if self._process is None and time.monotonic() >= self._not_before:
            self._start()
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process, self._not_before = None, time.monotonic() + (RESTART_SECONDS if code else 0)
            if code == 0 and (self._inits or self._restarts != "Always"):
                self._waiting.pop(0)
                self._inits -= self._inits > 0
            elif self._restarts == "Never":
                return {"phase": "Failed"}
        if not self._waiting:
            return {"phase": "Succeeded"}
        return _status(is_ready=not self._inits and self._process is not None and self._answers())

    def has_stopped(self) -> bool:
        """Tell the process to end, once; whether it has."""
        if self._process is not None and not self._stopped:
            self._process.terminate()
            self._stopped = True
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """End at once whatever runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        container = self._waiting[0]
        own = {one["name"]: one["value"] for one in container["env"]} | self._environment
        own["TESSERA_PORT_FILE"] = str(self._folder / "{service}.port")
        inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **own}
        assert container["command"] == ["tessera"], "no other program is here"
        command = [sys.executable, "-m", "tessera", *container["args"]]
        with (self._folder / f"{container['name']}.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=environment, stdout=log, stderr=log)

    def _answers(self) -> bool:
        probe = self._waiting[0].get("readinessProbe")
        if probe is None:
            return True
        try:
            first = self._waiting[0]["args"][1].partition("+")[0]  # of several services the first is asked for all
            port = (self._folder / f"{first}.port").read_text().strip()
            address = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
            with urllib.request.urlopen(address, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False


def micro_now() -> str:
    """The time as a Lease has it."""
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _status(*, is_ready: bool) -> Json:
    ready = "True" if is_ready else "False"
    conditions = [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")]
    return {"phase": "Running", "conditions": conditions}


def _fill(api: Api, namespace: str, folder: Path, volume: Json, mounts: Mapping[str, Path]) -> None:
    """What a volume holds, as files; text that names a mounted path names it as it is here."""
    folder.mkdir(exist_ok=True)
    secrets = [one["secret"] for one in (volume, *volume.get("projected", {}).get("sources", ())) if "secret" in one]
    for secret in secrets:
        found = api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret.get('secretName') or secret['name']}")
        data = {key: base64.b64decode(value) for key, value in found["data"].items()}
        for item in secret["items"]:
            (folder / item["path"]).parent.mkdir(exist_ok=True)
            (folder / item["path"]).write_bytes(data[item["key"]])
    if config := volume.get("configMap"):
        found = api.get(f"/api/v1/namespaces/{namespace}/configmaps/{config['name']}")
        for key, text in found["data"].items():
            (folder / key).write_text(re.sub(r'"(/[^"]*)"', lambda path: f'"{_local(path[1], mounts)}"', text))


def _local(word: str, mounts: Mapping[str, Path]) -> str:
    for path, local in mounts.items():
        if word == path or word.startswith(f"{path}/"):
            return str(local) + word.removeprefix(path)
    return word
