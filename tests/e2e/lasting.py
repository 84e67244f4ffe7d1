"""Jobs that run until a test ends them, so that no test depends on how fast the machine is."""

from typing import Any

from tessera_schemas.cluster.labels import EVICT_AT_ANNOTATION
from tessera_schemas.job import JobSpec
from tests.e2e.live import Live, job

LONG = 3600.0


def lasting(name: str = "lasting", seconds: float = LONG, **more: Any) -> JobSpec:
    """A job that runs until `finish` ends it, on the simulated cluster; a time limit is to be longer than `seconds`."""
    spec = job(name, seconds=seconds, **more)
    (role,) = spec.roles
    notes = role.template.annotations | {"tessera.io/simulate-notice-seconds": "0"}
    template = role.template.model_copy(update={"annotations": notes})
    return spec.model_copy(update={"roles": (role.model_copy(update={"template": template}),)})


async def finish(live: Live, *jobs: str) -> None:
    """Have the programs of these jobs end well by themselves, as one that heeds a notice does."""
    cluster = live.cluster()
    try:
        pods, _ = await cluster.list("pods")
        for meta in (pod["metadata"] for pod in pods):
            if meta["name"].startswith(jobs):
                await cluster.annotate_pod(meta["namespace"], meta["name"], meta["uid"], {EVICT_AT_ANNOTATION: "0"})
    finally:
        await cluster.close()
