"""The plan of a demo, drawn before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tessera_local.cluster.machines.nodes import NodeRow
from tessera_local.production_mix import ProductionMix
from tessera_schemas.job import JobSpec

TENANT, SUBSCRIBER = "demo", "screen"
QUEUES = ("research", "product")
"""They lend to each other. Most work is research's, which thus borrows."""
SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The same seed gives the same plan. `kill` names the service that is killed; None: none is."""

    source: str
    nodes: Sequence[NodeRow]
    jobs: Sequence[JobSpec]
    kill: str | None

    @classmethod
    def draw(cls, mix: ProductionMix, jobs: int, nodes: int, seed: int, kill: str | None) -> "DemoPlan":
        """Draw jobs and nodes from the mix by `seed`; every fourth job goes to the second queue."""
        random = Random(seed)
        drawn = mix.draw_jobs(random, jobs, QUEUES[0])
        queued = [spec.model_copy(update={"queue": QUEUES[index % 4 == 3]}) for index, spec in enumerate(drawn)]
        return cls(mix.source, mix.draw_nodes(random, nodes), queued, kill)

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes drawn."""
        return sum(node.gpus for node in self.nodes)

    @property
    def gangs(self) -> list[int]:
        """The pods of each job that has several."""
        return [spec.roles[0].replicas for spec in self.jobs if spec.roles[0].replicas > 1]
