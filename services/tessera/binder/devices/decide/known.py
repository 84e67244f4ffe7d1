"""Devices of a node as the ledger has them: they stand as long as no watch has shown what the cluster has. Pure."""

from tessera.binder.devices.decide.gpus import PublishedGpus
from tessera.domain.devices.resources import Node
from tessera_schemas.cluster.device_layouts import DeviceTaint, NodeOffer, TakenDevice

NO_OFFER, NO_GPUS = NodeOffer(), PublishedGpus()


def known_offer(node: Node | None) -> NodeOffer:
    """Offer of the node by the ledger; the same object for all that offer nothing."""
    if node is None or not (node.offer or node.tainted or node.drawn_by_others or node.missing):
        return NO_OFFER
    return NodeOffer(
        layout="" if node.offer is None else node.offer.digest,
        tainted=tuple(
            DeviceTaint.model_validate({"device": device, "key": key, "value": value, "effect": effect})
            for device, key, value, effect in node.tainted
        ),
        taken=tuple(TakenDevice(device=device, capacity=dict(capacity)) for device, capacity in node.drawn_by_others),
        missing=node.missing,
    )


def known_gpus(node: Node | None) -> PublishedGpus:
    """GPUs that a driver published, by the ledger."""
    if node is None or node.device_profile != "dra":
        return NO_GPUS
    return PublishedGpus(node.gpus, node.gpu_model, node.gpu_memory_bytes)
