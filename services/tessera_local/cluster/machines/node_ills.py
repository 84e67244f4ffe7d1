"""Faults of nodes and registries for a while: kubelets ask before they take, prepare, start or stop a pod."""

from collections import defaultdict
from dataclasses import dataclass

from tessera_schemas.base import Json


@dataclass(slots=True)
class NodeIll:
    """
    Faults of one node: it `refuses` every pod with this text, `fails` to prepare any, starts none, cannot stop one, or
    shuts down.

    A node that `starts_nothing` takes pods, and their containers are created for ever; one that `fails` to prepare them
    says why, too: in events of that reason and message, and nowhere else. One that is `stuck` ends no
    container that is to be stopped; a program that ends by itself does.
    """

    refuses: str = ""
    fails: tuple[str, str] | None = None
    starts_nothing: bool = False
    is_stuck: bool = False
    shuts_down: bool = False


class Ills:
    """By node, and of the registries for all of them."""

    def __init__(self) -> None:
        self._nodes: defaultdict[str, NodeIll] = defaultdict(NodeIll)
        self._images: dict[tuple[str, str], str] = {}

    def of(self, node: str) -> NodeIll:
        """Faults of a node, to be read and changed."""
        return self._nodes[node]

    def set_images_out(self, begins: str, node: str, why: str) -> None:
        """Images whose names begin so cannot be pulled, on one node or ("") on any; a `why` of "" ends it."""
        if why:
            self._images[begins, node] = why
        else:
            self._images.pop((begins, node), None)

    def missing_images(self, node: str, pod: Json, tried: bool) -> Json:
        """State of each container of the pod that lacks its image, by image; `tried`: not for the first time."""
        spec = pod["spec"]
        images = [one.get("image", "") for one in (*(spec.get("initContainers") or ()), *spec["containers"])]
        missing = {image: self._why(image, node) for image in images}
        return {image: _waiting(image, why, tried) for image, why in missing.items() if why}

    def _why(self, image: str, node: str) -> str:
        out = ((begins, why) for (begins, where), why in self._images.items() if where in ("", node))
        return next((why for begins, why in out if image.startswith(begins)), "")


def _waiting(image: str, why: str, tried: bool) -> Json:
    if tried:
        return {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": ErrImagePull: {why}'}
    return {"reason": "ErrImagePull", "message": f'failed to pull and unpack image "{image}": {why}'}
