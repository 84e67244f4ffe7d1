"""What users do with kubectl, and what they see: objects of their own that name our scheduler, in their namespace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.kernel.ports import ApiError
from tests.e2e.live import eventually
from tests.kubernetes.deployed import Kubectl
from tests.kubernetes.live import KubernetesLive

Json = dict[str, Any]
MANIFESTS = Path(__file__).with_name("manifests")
NAMESPACE = "lab"


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
        await self.until(lambda: self.in_phase(job, "Running"), f"a pod of {job} runs")
        return self.in_phase(job, "Running")[0]

    async def until_complete(self, *jobs: str) -> None:
        for name in jobs:
            await self.until(lambda name=name: condition(self.job(name), "Complete"), f"Job {name} is complete")  # type: ignore[misc]

    async def until_told(self, pod: str, *codes: str) -> Json:
        """The condition of a pod, once it gives one of these reasons for not being placed."""

        def told() -> bool:
            found = self.pod(pod)
            return found is not None and scheduled(found).get("reason") in codes

        await self.until(told, f"pod {pod} says {' or '.join(codes)}")
        found = self.pod(pod)
        assert found is not None
        return scheduled(found)

    async def until_phase(self, pod: str, *phases: str) -> None:
        def so() -> bool:
            found = self.pod(pod)
            return found is not None and found["status"].get("phase") in phases

        await self.until(so, f"pod {pod} is {' or '.join(phases)}")

    async def until_succeeded(self, *pods: str) -> None:
        for name in pods:
            await self.until_phase(name, "Succeeded")

    def in_phase(self, job: str, phase: str) -> list[Json]:
        return [pod for pod in self.pods(job) if pod["status"].get("phase") == phase]


def scheduled(pod: Json) -> Json:
    return condition(pod, "PodScheduled", "True", "False")


def condition(thing: Json, kind: str, *statuses: str) -> Json:
    """The condition of this kind, {} when there is none that is True (or one of `statuses`)."""
    found = thing.get("status", {}).get("conditions", ())
    wanted = statuses or ("True",)
    return next((dict(one) for one in found if one["type"] == kind and one["status"] in wanted), {})
