"""What users do with kubectl, and what they see: objects of their own that name our scheduler, in their namespace."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tessera.kernel.ports import ApiError
from tessera_schemas.config import Policy
from tests.e2e.live import configuration, eventually
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import Kubectl
from tests.kubernetes.live import KubernetesLive, live_on

Json = dict[str, Any]
MANIFESTS = Path(__file__).with_name("manifests")
NAMESPACE = "lab"


@asynccontextmanager
async def live_with_priorities(plane: ControlPlane, directory: Path) -> AsyncIterator[KubernetesLive]:
    """A platform whose policy evicts by priority at once, and the priority classes that users name."""
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0, earmark_seconds=30))
    async with live_on(plane, directory, body) as live:
        Users(live).apply("priorities")
        yield live


class Users:
    """The people of one namespace. Everything they make has a name of theirs; what is waited for is what they see."""

    def __init__(self, live: KubernetesLive, namespace: str = NAMESPACE) -> None:
        self.live, self.namespace = live, namespace
        self.api, self.kubectl = live.plane.api(), Kubectl(live.plane)

    # -- doing

    def apply(self, *names: str) -> None:
        for name in names:
            self.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))

    def create(self, obj: Json) -> Json:
        obj["metadata"].setdefault("namespace", self.namespace)
        return self.api.create(obj)

    def delete(self, kind: str, name: str) -> None:
        self.kubectl("delete", kind, name, "--namespace", self.namespace, "--ignore-not-found", "--wait=false")

    def finish(self, *names: str) -> None:
        """The programs of the pods that are called so, or whose job is, end by themselves, as they would in the end."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        for name in (pod["metadata"]["name"] for pod in self.api.items(path)):
            if name.startswith(names):
                with suppress(ApiError):  # it ended meanwhile, and is gone
                    self.api.patch(
                        f"{path}/{name}", {"metadata": {"annotations": {"tessera.io/simulate-seconds": "0"}}}
                    )

    def fail(self, pod: Json) -> None:
        """The program of a running pod ends with an error, and the pod with it, as its kubelet says it."""
        ended = {"ready": False, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
        self._say(pod, ended, phase="Failed")

    def restart(self, pod: Json) -> None:
        """The program of a running pod ended and runs again, as its kubelet says it."""
        self._say(pod, {"restartCount": 1})

    def _say(self, pod: Json, of_its_container: Json, **status: Any) -> None:
        (running,) = pod["status"]["containerStatuses"]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.api.patch(path, {"status": {"containerStatuses": [running | of_its_container], **status}})

    def delete_pods(self, *names: str) -> None:
        for name in names:
            self.delete("pod", name)

    # -- looking

    def job(self, name: str) -> Json:
        return self.api.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}")

    def pods(self, job: str) -> list[Json]:
        """Those of a Job, the oldest first, without those that are on their way out."""
        found = self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=f"job-name={job}")
        there = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(there, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def pod(self, name: str) -> Json | None:
        try:
            return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def describe(self, pod: Json) -> str:
        return self.kubectl("describe", "pod", pod["metadata"]["name"], "--namespace", self.namespace)

    def events(self, name: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/events"
        return self.api.items(path, fieldSelector=f"involvedObject.name={name}")

    # -- waiting

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await eventually(lambda: bool(condition()), what)

    async def until_running(self, job: str) -> Json:
        """The pod of the Job that runs, once one does."""
        found: list[Json] = []
        await self.until(lambda: found.extend(self.in_phase(job, "Running")) or found, f"a pod of {job} runs")
        return found[0]

    async def until_complete(self, *jobs: str) -> None:
        for name in jobs:
            await self.until(lambda name=name: condition(self.job(name), "Complete"), f"Job {name} is complete")  # type: ignore[misc]

    async def until_told(self, pod: str, *codes: str) -> Json:
        """The condition of a pod, once it gives one of these reasons for not being placed."""

        said: Json = {}

        def told() -> bool:
            said.clear()
            said.update(scheduled(self.pod(pod) or {}))
            return said.get("reason") in codes

        await self.until(told, f"pod {pod} says {' or '.join(codes)}")
        return said

    async def until_phase(self, pod: str, *phases: str) -> None:
        def so() -> bool:
            found = self.pod(pod)
            return found is not None and found["status"].get("phase") in phases

        await self.until(so, f"pod {pod} is {' or '.join(phases)}")

    async def until_succeeded(self, *pods: str) -> None:
        for name in pods:
            await self.until_phase(name, "Succeeded")

    def labelled(self, label: str, *phases: str) -> list[Json]:
        """Pods with this label (`name=value`) that are not on their way out, in these phases if any are named."""
        found = self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=label)
        there = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in there if not phases or pod["status"]["phase"] in phases]

    def in_phase(self, job: str, phase: str) -> list[Json]:
        return [pod for pod in self.pods(job) if pod["status"].get("phase") == phase]


def scheduled(pod: Json) -> Json:
    return condition(pod, "PodScheduled", "True", "False")


def condition(thing: Json, kind: str, *statuses: str) -> Json:
    """The condition of this kind, {} when there is none that is True (or one of `statuses`)."""
    found = thing.get("status", {}).get("conditions", ())
    wanted = statuses or ("True",)
    return next((dict(one) for one in found if one["type"] == kind and one["status"] in wanted), {})


def uids(pods: Iterable[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def runs_of(pods: Iterable[Json]) -> set[tuple[str, int]]:
    """The jobs of bound pods, by id, each with the attempt."""
    runs = (pod["metadata"]["annotations"]["tessera.io/run"].rpartition("-") for pod in pods)
    return {(job, int(attempt)) for job, _, attempt in runs}
