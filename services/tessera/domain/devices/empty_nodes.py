"""Nodes with nothing of ours on them: as a fact describes them, and as they would be without any pod. Pure."""

from tessera.domain.devices.offers import Offer
from tessera.domain.devices.resources import WHOLE_GPU, Node, OthersUse, give_others
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.facts import NodeSeen


def emptied(node: Node) -> Node:
    """The node with nothing on it, not even what is not ours, and ready."""
    return Node(
        node.name,
        node.pool,
        True,
        node.cpu_milli,
        node.memory_bytes,
        node.pods,
        node.gpus,
        node.gpu_model,
        node.device_profile,
        node.labels,
        node.taints,
        node.cpu_milli,
        node.memory_bytes,
        node.pods,
        (WHOLE_GPU,) * node.gpus,
        node.gone,
        node.gpu_memory_bytes,
        node.mig_geometry,
        node.devices,
        node.devices,
        no_slices_taken(node.gpus, node.mig_geometry),
        gpu_uuids=node.gpu_uuids,
        mig_instances=node.mig_instances,
        tolerated=node.tolerated,
        offer=node.offer,
        tainted=node.tainted,
        missing=node.missing,
        gpu_resource=node.gpu_resource,
        gpu_default=node.gpu_default,
        share_milli=node.share_milli,
        zones=node.zones,
        pieces=node.pieces,
        kept_data=node.kept_data,
        told_data=node.told_data,
    )


def no_slices_taken(gpus: int, mig_geometry: str) -> tuple[tuple[int, ...], ...]:
    """Empty GPUs of that geometry, in the form of `Node.mig_taken`; nothing for GPUs that are not cut."""
    return ((0,) * GEOMETRIES[mig_geometry].slices,) * gpus if mig_geometry in GEOMETRIES else ()


def empty_node(seen: NodeSeen) -> Node:
    """The node as the cluster describes it, with nothing of ours on it."""
    devices, others = tuple(sorted(seen.devices.items())), others_of(seen)
    theirs, gpu = dict(others.devices), [WHOLE_GPU] * seen.gpus
    gpu_others = give_others(gpu, others.gpus) if others.gpus else ()
    return Node(
        seen.name,
        seen.pool,
        seen.ready and not seen.gone and seen.trouble is None,
        seen.cpu_milli,
        seen.memory_bytes,
        seen.pods,
        seen.gpus,
        seen.gpu_model,
        seen.device_profile,
        tuple(sorted(seen.labels.items())),
        tuple(sorted((t.key, t.value, t.effect) for t in seen.taints)),
        seen.cpu_milli - others.cpu_milli,
        seen.memory_bytes - others.memory_bytes,
        seen.pods - others.pods,
        tuple(gpu),
        seen.gone,
        seen.gpu_memory_bytes,
        seen.mig_geometry,
        devices,
        tuple((name, count - theirs.get(name, 0)) for name, count in devices),
        no_slices_taken(seen.gpus, seen.mig_geometry),
        others,
        gpu_others,
        seen.gpu_uuids,
        tuple(sorted(seen.mig_instances.items())),
        seen.trouble,
        seen.cordoned and not seen.gone,
        capacity=tuple(sorted(seen.capacity.items())),
        offer=Offer(seen.offer.layout) if seen.offer.layout else None,
        tainted=tuple(sorted((t.device, t.key, t.value, t.effect) for t in seen.offer.tainted)),
        drawn_by_others=tuple(sorted((t.device, tuple(sorted(t.capacity.items()))) for t in seen.offer.taken)),
        missing=tuple(sorted(seen.offer.missing)),
        gpu_resource=seen.gpu_resource,
        gpu_default=seen.gpu_default,
        share_milli=seen.share_milli,
        zones=tuple(tuple(sorted(zone.items())) for zone in seen.zones),
        told_data=tuple(sorted(set(seen.datasets))),
    )


def others_of(seen: NodeSeen) -> OthersUse:
    """Converts what a node fact says of pods that Tessera did not place; devices are sorted by name."""
    reported = seen.others
    return OthersUse(
        reported.cpu_milli, reported.memory_bytes, reported.pods, reported.gpus, tuple(sorted(reported.devices.items()))
    )
