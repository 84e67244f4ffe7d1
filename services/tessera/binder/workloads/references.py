"""References between objects of the API. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.binder.workloads.reading import at, items, no, text
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """An object of the API. `uid` is "" where only a label names it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """API group of the owner, "" for the core group."""
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""


OwnersByRef = Mapping[OwnerRef, Json | None]
"""Objects as the API has them now; None: it has none of that name."""


def controller_of(thing: Json) -> OwnerRef | None:
    """The controller that makes the object again when it is gone; an object has one at most."""
    namespace = text(thing, "metadata", "namespace")
    for ref in items(thing, "metadata", "ownerReferences"):
        if ref.get("controller") is True:
            return OwnerRef(text(ref, "apiVersion"), text(ref, "kind"), namespace, text(ref, "name"), text(ref, "uid"))
    return None


def ref_of(thing: Json) -> OwnerRef:
    """Reference to an object that says its apiVersion and kind."""
    namespace, name, uid = (text(thing, "metadata", field) for field in ("namespace", "name", "uid"))
    return OwnerRef(text(thing, "apiVersion"), text(thing, "kind"), namespace, name, uid)


def is_it(ref: OwnerRef, thing: Json) -> bool:
    """Whether the object is the one that is named, and not another that was made later under the same name."""
    return not ref.uid or at(thing, "metadata", "uid") == ref.uid


def not_found(owner: OwnerRef) -> Reason:
    """Reason for pods whose owner the API does not have."""
    return no(Code.OWNER_NOT_FOUND, f"{owner.kind} {owner.namespace}/{owner.name}")
