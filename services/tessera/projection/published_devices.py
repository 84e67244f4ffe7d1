"""
Devices that drivers publish as views show them: the classes that jobs claim, and in Slurm's words.

The generic resource of a class is the configuration's, where entries of one class differ in their types alone without a
type; else `gpu` for a class that gives GPUs, or parts of them, and the name of the class for any other.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tessera.domain.devices.amounts import Amount
from tessera.domain.devices.claims import classes_of
from tessera.domain.devices.offers import Offer
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.state import State
from tessera_schemas.cluster.device_claims import GresClass
from tessera_schemas.ledger import DevicesNoted, LedgerMessage

GPU = "gpu"
GresNames = tuple[tuple[str, str], ...]
"""Classes with the generic resource that stands for each."""


def devices_of_job(state: State, amount: Amount, gang: Sequence[RoleNeed] = ()) -> dict[str, Any]:
    """Fields of a job's view about devices of classes; none for a job without claims. `gang` is of a live job."""
    if not amount.device_classes:
        return {}
    claimed = [(role.name, *names, name) for role in gang for names, name in classes_of(role.need.claims).items()]
    classes = (*(name for name, _ in amount.device_classes), *(name for *_, name in claimed))
    offers = [offer for _, offer in state.offers.items()]
    gres = _gres_names(state.tree.gres, classes, offers)
    return {"device_classes": amount.device_classes, "claimed": tuple(claimed), "gres": gres}


def gres_of_node(state: State, node: Node) -> GresNames:
    """The generic resource of each class of which the node has devices."""
    if node.offer is None:
        return ()
    return _gres_names(state.tree.gres, (name for name, *_ in node.device_classes), (node.offer,))


def ended_with_devices(state: State, message: LedgerMessage, shown: Iterable[str]) -> Iterator[str]:
    """Ended jobs among those shown of whose classes a message may say more; live ones are among what it touches."""
    if any(type(record) is DevicesNoted for record in message.records):
        ended = ((job_id, state.ended.get(job_id)) for job_id in shown)
        yield from (job_id for job_id, job in ended if job is not None and job.amount.device_classes)


def _gres_names(table: Sequence[GresClass], classes: Iterable[str], offers: Sequence[Offer]) -> GresNames:
    return tuple((name, _named(table, name) or _unnamed(name, offers)) for name in sorted(set(classes)))


def _named(table: Sequence[GresClass], device_class: str) -> str:
    names = [each.name for each in table if each.device_class == device_class]
    kinds = {name.partition(":")[0] for name in names}
    return names[0] if len(names) == 1 else kinds.pop() if len(kinds) == 1 else ""


def _unnamed(device_class: str, offers: Sequence[Offer]) -> str:
    found = ((offer.selected(device_class, ()), offer.gpu_bits) for offer in offers)
    return GPU if any(of is not None and of.devices & gpus for of, gpus in found) else device_class
