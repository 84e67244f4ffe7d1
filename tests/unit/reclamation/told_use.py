"""A source of GPU use that says what a test tells it."""

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuSample, GpuUsage
from tessera_schemas.cluster.labels import pod_name


class Told:
    """A source that says what a test tells it: percent by run, of all its pods."""

    def __init__(self) -> None:
        self.percent: dict[str, int] = {}
        self.away = False

    async def usage(self) -> GpuUsage:
        if self.away:
            raise Transient("away")
        return of({("lab", pod_name(run, rank)): found for run, found in self.percent.items() for rank in range(2)})


def of(percents: dict[tuple[str, str], int]) -> GpuUsage:
    """One GPU of each pod, used by so many percent."""
    return {pod: (GpuSample("0", percent),) for pod, percent in percents.items()}
