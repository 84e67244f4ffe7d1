"""Plays KubeRay's operator for one RayJob: its cluster, and the Job of the pod that submits its program."""

from typing import Any

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod

Json = dict[str, Any]
API = "ray.io/v1"


class Operator:
    """
    A cluster of another name at each start, all of it taken away by a suspension. With a template of it the submitter
    is made once all of a cluster runs.
    """

    def __init__(self, world: AdoptionWorld, suspended: bool = False, submitter: Json | None = None) -> None:
        self.world, self.number = world, 0
        worker = {"groupName": "w", "replicas": 2, "minReplicas": 2, "maxReplicas": 2, "template": template(2)}
        cluster = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": [worker]}
        spec = {"rayClusterSpec": cluster, "shutdownAfterJobFinishes": True, "suspend": suspended}
        if submitter is not None:
            spec["submitterPodTemplate"] = submitter
        self.uid = world.core.create("rayjobs", NS, {"metadata": {"name": "train"}, "spec": spec}).uid

    def job(self) -> Json:
        return self.world.core.get("rayjobs", NS, "train").object

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.act()
            await self.world.run(1)

    def act(self) -> None:
        """Take one look at the RayJob and do what follows from it."""
        clusters = self.world.core.list("rayclusters", NS)[0]
        if self.job()["spec"]["suspend"]:
            for name in [*(each.object["metadata"]["name"] for each in clusters)]:
                self.world.core.delete("rayclusters", NS, name)
            for job in self.world.core.list("jobs")[0]:
                self.world.core.delete("jobs", NS, job.object["metadata"]["name"])
            for pod in self.of_cluster():
                if "deletionTimestamp" not in pod["metadata"]:
                    self.world.core.delete("pods", NS, pod["metadata"]["name"])
        elif not clusters and not self.world.owned():
            self._make()
        elif self.of_cluster() and all(pod["status"].get("phase") == "Running" for pod in self.of_cluster()):
            self.submit(self.job()["spec"].get("submitterPodTemplate"))

    def of_cluster(self) -> list[Json]:
        """Pods of the head and the workers."""
        return [pod for pod in self.world.owned() if "ray.io/cluster" in pod["metadata"]["labels"]]

    def submitters(self) -> list[Json]:
        """Pods that submit the program, the oldest first."""
        return [pod for pod in self.world.owned() if "ray.io/cluster" not in pod["metadata"]["labels"]]

    def submit(self, pod: Json | None) -> None:
        """Make the Job of the pod that submits the program, unless it is there."""
        if pod is None or self.world.core.list("jobs")[0]:
            return
        above = {"apiVersion": API, "kind": "RayJob", "name": "train", "uid": self.uid, "controller": True}
        meta = {"name": "train", "ownerReferences": [above]}
        spec = {"parallelism": 1, "completions": 1, "backoffLimit": 2, "template": pod}
        self.world.core.create("jobs", NS, {"metadata": meta, "spec": spec})

    def _make(self) -> None:
        self.number += 1
        name = f"train-{self.number}"
        above = {"apiVersion": API, "kind": "RayJob", "name": "train", "uid": self.uid, "controller": True}
        made = self.world.core.create(
            "rayclusters",
            NS,
            {
                "metadata": {"name": name, "ownerReferences": [above]},
                "spec": self.job()["spec"]["rayClusterSpec"],
            },
        )
        owner = {"apiVersion": API, "kind": "RayCluster", "name": name, "uid": made.uid, "controller": True}
        for number, group in enumerate(("headgroup", "w", "w")):
            pod = user_pod(f"{name}-{number}", gpus=2 if group == "w" else 0)
            pod["metadata"]["labels"] |= {"ray.io/cluster": name, "ray.io/group": group}
            pod["metadata"]["ownerReferences"] = [owner]
            self.world.core.create("pods", NS, pod)


def template(gpus: int) -> Json:
    pod = user_pod("", gpus=gpus)
    del pod["metadata"]["name"]
    return pod
