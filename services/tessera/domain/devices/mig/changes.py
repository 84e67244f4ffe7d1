"""Instances of a node under its configuration of NVIDIA's mig-manager, and under another. Pure."""

from collections.abc import Iterable

from tessera.domain.devices.empty_nodes import no_slices_taken
from tessera.domain.devices.mig.instances import layout
from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.storing.fast import replace
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.cluster.pools import MigChanges, MigConfig, Pool

SUCCESS, FAILED = "success", "failed"
"""Values by which the mig-manager says that it has ended."""


def changes_by_pool(pools: Iterable[Pool]) -> dict[str, MigChanges]:
    """Allowed changes by pool; pools without any are left out."""
    return {pool.name: pool.mig_changes for pool in pools if pool.mig_changes is not None}


def config_of(node: Node, changes: MigChanges) -> tuple[MigConfig, int] | None:
    """
    The configuration that a node has, and its number of GPUs.

    None unless the mig-manager says that it has cut the GPUs so, and the device plugin offers exactly these instances.
    """
    config = changes.named(node.label(MIG_CONFIG_LABEL))
    if config is None or node.label(MIG_CONFIG_STATE_LABEL) != SUCCESS:
        return None
    made = dict(node.mig_instances)
    profile, each = min(config.gives.items())
    gpus = made.get(profile, 0) // each
    return (config, gpus) if gpus and made == instances_of(config, gpus) else None


def instances_of(config: MigConfig, gpus: int) -> dict[str, int]:
    """Number of instances on so many GPUs, by profile."""
    return {profile: gpus * count for profile, count in config.gives.items()}


def cut_to(node: Node, config: MigConfig, gpus: int) -> Node | None:
    """The node, idle and under that configuration; None where its GPUs cannot be cut so."""
    geometry = GEOMETRIES.get(node.mig_geometry)
    if geometry is None or not config.gives.keys() <= geometry.profiles.keys():
        return None
    made = tuple(sorted(instances_of(config, gpus).items()))
    count = len(layout(node.mig_geometry, made))
    return replace(
        node,
        gpus=count,
        gpu_free=(WHOLE_GPU,) * count,
        gpu_others=(),
        mig_instances=made,
        mig_taken=no_slices_taken(count, node.mig_geometry),
    )
