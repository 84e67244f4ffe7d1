"""A service beside training that fills the cluster: a Deployment of whole nodes, scaled by a real HPA."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tessera_schemas.cluster.labels import MIN_REPLICAS_ANNOTATION, QUEUE_LABEL
from tessera_schemas.config import Policy, Queue, Quota
from tests.e2e.live import configuration, eventually, job
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.keda import AUTOSCALING
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.played_metrics import METRIC, PlayedMetrics
from tests.kubernetes.users_objects import pod

Json = dict[str, Any]
NAMESPACE, NAME, LEAST = "lab", "chat", 2
CONTROLLER_FLAGS = AUTOSCALING
LOOK_SECONDS = 0.05
GPUS_OF_A_NODE = 8


class ScaledService:
    """
    The Deployment, and what is seen of its pods. `lowest` is the fewest replicas that ran at any look since
    `until_running` first saw the minimum run.
    """

    def __init__(self, live: KubernetesLive, nodes: int) -> None:
        self.live, self.nodes, self.lowest = live, nodes, -1
        self._api = live.plane.api()
        self._path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
        self.training: list[str] = []

    async def fill(self) -> None:
        """Training on every node that the service does not use, as many jobs as there are nodes."""
        for number in range(self.nodes):
            spec = job(f"train-{number}", gpus=GPUS_OF_A_NODE, seconds=36_000, queue="training")
            self.training.append((await self.live.submit(spec, "ops")).job_id)

    def create(self, replicas: int, **spec: Any) -> None:
        """The Deployment, with its minimum, and whole nodes for each pod."""
        template = pod("unnamed", gpus=GPUS_OF_A_NODE, seconds=36_000, labels={"app": NAME, QUEUE_LABEL: "serving"})
        template["spec"]["restartPolicy"] = "Always"
        meta = {key: template["metadata"][key] for key in ("labels", "annotations")}
        self._api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {
                    "name": NAME,
                    "namespace": NAMESPACE,
                    "annotations": {MIN_REPLICAS_ANNOTATION: str(LEAST)},
                },
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": NAME}},
                    "template": {"metadata": meta, "spec": template["spec"]},
                    **spec,
                },
            }
        )

    def autoscale(self, most: int) -> None:
        """An HPA that wants as many replicas as the played metric says, without its usual pauses."""
        at_once = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}]}
        metric = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "1"}}
        self._api.call(
            "POST",
            f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers",
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": NAME},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
                    "minReplicas": LEAST,
                    "maxReplicas": most,
                    "metrics": [{"type": "External", "external": metric}],
                    "behavior": {"scaleUp": at_once, "scaleDown": at_once},
                },
            },
        )

    def scale(self, replicas: int) -> None:
        """What `kubectl scale` does."""
        self._api.patch(self._path, {"spec": {"replicas": replicas}})

    def roll(self, mark: str) -> None:
        """What `kubectl rollout restart` does."""
        self._api.patch(self._path, {"spec": {"template": {"metadata": {"annotations": {"restarted": mark}}}}})

    def deployment(self) -> Json:
        return self._api.get(self._path)

    def wanted(self) -> int:
        return int(self.deployment()["spec"]["replicas"])

    def running(self) -> list[Json]:
        """Pods of the service at work, those on their way out left aside; the lowest number is kept."""
        found = self._api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app={NAME}")
        running = [each for each in found if each["status"].get("phase") == "Running"]
        running = [each for each in running if "deletionTimestamp" not in each["metadata"]]
        if self.lowest >= 0:
            self.lowest = min(self.lowest, len(running))
        return running

    def said_of_waiting(self) -> str:
        """What the conditions of pods that wait say, one after the other."""
        found = self._api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app={NAME}")
        waiting = [pod for pod in found if pod["status"].get("phase") == "Pending"]
        return " ".join(str(each) for pod in waiting for each in pod["status"].get("conditions", ()))

    def in_training(self) -> int:
        """Number of training jobs that run."""
        return sum(self.live.phase(job_id) == "running" for job_id in self.training)

    async def until_running(self, replicas: int) -> None:
        """Just so many replicas run, and training on all other nodes."""
        await eventually(lambda: len(self.running()) == replicas, f"{replicas} replicas run")
        if self.lowest < 0:
            self.lowest = replicas
        await eventually(lambda: self.in_training() == self.nodes - replicas, "training runs on all other nodes")

    async def scale_up(self, metrics: PlayedMetrics, replicas: int) -> float:
        """Seconds from the HPA's change of `spec.replicas` to all of the replicas at work, by looks of 50 ms."""
        metrics.wanted = replicas
        await self._until(lambda: self.wanted() == replicas, "the HPA has scaled")
        begun = time.monotonic()
        await self._until(lambda: len(self.running()) >= replicas, f"{replicas} replicas run")
        return time.monotonic() - begun

    async def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + 180
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < deadline, what
            await asyncio.sleep(LOOK_SECONDS)


async def scale_ups(service: ScaledService, metrics: PlayedMetrics, count: int, most: int) -> Sequence[float]:
    """So many scale-ups by one replica against a full cluster: up to `most`, back to the minimum, and so on."""
    seconds = list[float]()
    while len(seconds) < count:
        for replicas in range(LEAST + 1, most + 1):
            if len(seconds) < count:
                seconds.append(await service.scale_up(metrics, replicas))
                await service.until_running(replicas)
        metrics.wanted = LEAST
        await service.until_running(LEAST)
    return seconds


@asynccontextmanager
async def serving_beside_training(plane: ControlPlane, folder: Path, nodes: int) -> AsyncIterator[ScaledService]:
    """The platform with a queue `serving` that owns all nodes and lends them to `training`."""
    plane.add_nodes(nodes, "gpu")
    own = Quota(resource="gpu_milli", nominal=nodes * GPUS_OF_A_NODE * 1000)
    queues = (Queue(name="all"), Queue(name="serving", parent="all", quotas=(own,)))
    queues += (Queue(name="training", parent="all"),)
    policy = Policy(preset="fair", min_runtime_seconds=0)
    async with live_on(plane, folder, configuration(queues=queues, policy=policy)) as live:
        yield ScaledService(live, nodes)
