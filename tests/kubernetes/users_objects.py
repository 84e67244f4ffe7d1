"""Objects as users write them: a pod, a Job."""

import asyncio
import signal
from typing import Any

from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.proxy import Hook

Json = dict[str, Any]


def pod(
    name: str, *, gpus: int = 1, seconds: float = 1, labels: Json | None = None, notes: Json | None = None, **spec: Any
) -> Json:
    asks = {"cpu": "100m", "nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "100m"}
    resources = {"requests": asks, "limits": asks}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels or {},
            "annotations": {"tessera.io/simulate-seconds": str(seconds), **(notes or {})},
        },
        "spec": {
            "schedulerName": "tessera",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "train:1", "resources": resources}],
            **spec,
        },
    }


def batch_job(name: str, count: int = 1, **more: Any) -> Json:
    """`count` pods at once, each as `pod` makes it."""
    of = {key: more.pop(key) for key in ("gpus", "seconds", "notes", "labels") if key in more}
    made = pod(name, **of, **more.pop("template", {}))
    template = {"metadata": {key: made["metadata"][key] for key in ("labels", "annotations")}, "spec": made["spec"]}
    spec = {"parallelism": count, "completions": count, "template": template, **more}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def at_the(number: int, verb: str, part: str, reached: asyncio.Event, live: KubernetesLive) -> Hook:
    """Kill the binder at the so-manieth call of a verb whose path has this part, before the call goes on."""
    seen = 0

    async def hook(called: str, path: str) -> None:
        nonlocal seen
        if called == verb and part in path and not reached.is_set():
            seen += 1
            if seen == number:
                reached.set()
                await live.platform.stop("binder", signal.SIGKILL)

    return hook
