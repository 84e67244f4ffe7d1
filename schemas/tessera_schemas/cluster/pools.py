"""
Node pools of the configuration: who hands out their GPUs, how NVIDIA's mig-manager may cut these anew, how many are
spares, and what their caches keep.
"""

from collections import Counter
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, Positive, Strict, later
from tessera_schemas.cluster.device_vendors import ResourceName
from tessera_schemas.cluster.devices import DeviceProfile
from tessera_schemas.cluster.mig import GEOMETRIES, Geometry
from tessera_schemas.job import Toleration
from tessera_schemas.work.tenant_shares import YEAR_SECONDS

ConfigName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
"""A value of the label `nvidia.com/mig.config`."""
DAY_SECONDS = 86_400
SPARE_NODES_MAX = 1_000


class MigConfig(Strict):
    """A configuration of the mig-manager that cuts all GPUs of a node alike."""

    name: Annotated[ConfigName, Field(description="Name of the configuration, as the mig-manager knows it")]
    gives: Annotated[
        dict[str, Positive],
        Field(min_length=1, max_length=8, description="Number of instances that it makes of each GPU, by MIG profile"),
    ]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not any(_holds(geometry, self.gives) for geometry in GEOMETRIES.values()):
            raise ValueError("gives: no known kind of GPU can be cut into these instances")
        return self


def _holds(geometry: Geometry, gives: dict[str, int]) -> bool:
    profiles = geometry.profiles
    return gives.keys() <= profiles.keys() and sum(profiles[p].size * n for p, n in gives.items()) <= geometry.slices


class MigChanges(Strict):
    """Changes of geometry that Tessera may ask the mig-manager for on idle nodes of a pool."""

    configs: Annotated[
        tuple[MigConfig, ...],
        Field(min_length=2, max_length=16, description="Configurations between which nodes may change"),
    ]
    nodes_at_once: Annotated[Positive, Field(le=64, description="Number of nodes that change at the same time")] = 1
    change_seconds: Annotated[
        Positive,
        Field(
            le=DAY_SECONDS,
            description="Seconds that a change takes, as long as none was seen; a job waits for as long as the longest "
            "of the nodes' last changes took before a node is changed for it",
        ),
    ] = 300
    interval_seconds: Annotated[
        Positive, Field(le=30 * DAY_SECONDS, description="Least seconds between two changes of one node")
    ] = 3600

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        twice = [name for name, count in Counter(config.name for config in self.configs).items() if count > 1]
        if twice:
            raise ValueError(f"configs.{twice[0]}: is there twice")
        return self

    def named(self, name: str | None) -> MigConfig | None:
        """The configuration of that name."""
        return next((config for config in self.configs if config.name == name), None)


class Pool(Strict):
    """Nodes that say the pool's name. A node that itself says another device profile takes nothing new."""

    name: Annotated[Name, Field(description="Name of the pool, as queues and nodes give it")]
    device_profile: Annotated[
        DeviceProfile | None, Field(description="Component that hands out the nodes' GPUs; null: as each node says")
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(max_length=32, description="Standing tolerations: taints of its nodes that all pods of jobs tolerate"),
    ] = later(())
    gpu_resource: Annotated[
        ResourceName | None,
        Field(description="GPUs of jobs without a GPU resource or model, and of nodes of two kinds; null: NVIDIA's"),
    ] = later(None)
    mig_changes: Annotated[
        MigChanges | None,
        Field(description="Changes of MIG geometry through NVIDIA's mig-manager on idle nodes; null: none"),
    ] = later(None)
    spare_nodes: Annotated[
        Count,
        Field(
            le=SPARE_NODES_MAX,
            description="Number of empty nodes kept as spares, for jobs whose run ended for a lost or sick node",
        ),
    ] = later(0)

    @model_validator(mode="after")
    def _offers_instances(self) -> Self:
        if self.mig_changes is not None and self.device_profile != "mig":
            raise ValueError("mig_changes: needs device_profile: mig")
        return self


class DataCaches(Strict):
    """Caches of the nodes for data sets: how much they hold, for how long, and what it takes to read them anew."""

    node_bytes: Annotated[Positive, Field(description="Bytes of data sets that a node keeps")] = 2_000_000_000_000
    kept_seconds: Annotated[
        Positive, Field(le=YEAR_SECONDS, description="Seconds after its last use for which a node keeps a data set")
    ] = 604_800
    read_bytes_per_second: Annotated[
        Count, Field(description="Bytes that a node reads in a second; 0: no node is chosen by its data sets")
    ] = 1_000_000_000
    wait_percent: Annotated[
        Count,
        Field(
            le=1000,
            description="Wait of a job for a full node that has its data sets while others are free, in percent of the "
            "time that reading them anew takes; 0: none",
        ),
    ] = 50
    level: Annotated[
        Name | None,
        Field(description="Topology level within which nodes read from each other's caches; null: only from their own"),
    ] = None
