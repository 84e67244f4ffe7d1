"""Facts about devices that drivers publish for dynamic resource allocation (DRA), as the binder sees them."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tessera_schemas.base import Digest, Sentence
from tessera_schemas.cluster.device_layouts import ClassName, DeviceLayout, Expression
from tessera_schemas.shard.records import AnyFact


class LayoutSeen(AnyFact, sender="binder"):
    """Devices of a node, as a driver publishes them, that no node of the ledger had before."""

    kind: Literal["layout_seen"]
    layout: DeviceLayout


class ClassSeen(AnyFact, sender="binder"):
    """
    A class of devices as the cluster has it now; `gone` when there is no such class any more.

    `extended_resource`: the name of a counted resource, such as nvidia.com/gpu, that this class answers; "" for none.
    """

    kind: Literal["class_seen"]
    name: ClassName
    gone: bool = False
    selectors: Annotated[tuple[Expression, ...], Field(max_length=32)] = ()
    extended_resource: Annotated[str, StringConstraints(max_length=317)] = ""


class DevicesSelected(AnyFact, sender="binder"):
    """
    The devices of a layout that a set of expressions takes: bit i of the hexadecimal number `devices` is device i.

    `error` is what an evaluation ended with; then it takes none.
    """

    kind: Literal["devices_selected"]
    layout: Digest
    selectors: Annotated[tuple[Expression, ...], Field(max_length=64)] = ()
    devices: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,256}$")] = "0"
    error: Sentence = ""
