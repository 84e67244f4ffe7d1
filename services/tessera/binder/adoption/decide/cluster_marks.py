"""
Marks whose meaning depends on the cluster or the configuration, put in our own words before a pod is read. Pure.

HAMi's choice of GPU models holds words of their names. KAI's `gpu-memory` is a share of one GPU in MiB of its memory;
it is taken of the smallest GPU that has more, so that it is enough wherever there is as much. Names of other systems'
queues stand for ours by `queue_names` of the configuration, which may also say that a resource is one of GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.binder.adoption.decide.roles import REQUIRED
from tessera.binder.adoption.decide.spec import queue_of
from tessera.binder.workloads.mark_table import AVOID_MODEL, USE_MODEL
from tessera.binder.workloads.marks import read_mark
from tessera.binder.workloads.reading import items, mapping, number_in, text
from tessera.domain.state import State
from tessera_schemas.base import Json
from tessera_schemas.cluster.devices import serves
from tessera_schemas.cluster.labels import (
    GPU_MEMORY_ANNOTATION,
    GPU_MILLI_ANNOTATION,
    GPU_MODEL_LABEL,
    GPU_MODELS_ANNOTATION,
    GPU_PRODUCT_LABEL,
    GPU_RESOURCE_ANNOTATION,
    QUEUE_LABEL,
)
from tessera_schemas.job import GPU_MILLI

MEMORY, DEVICES = "gpu-memory", "gpu-fraction-num-devices"
MODEL_LABELS = (GPU_MODEL_LABEL, GPU_PRODUCT_LABEL)
SEPARATORS = str.maketrans("", "", " -_")
GpuNames = tuple[str, tuple[str, ...]]
"""What a node's GPUs are called: the model as jobs name it, and the values of the `MODEL_LABELS`."""


@dataclass(frozen=True, slots=True)
class ClusterMarks:
    """The cluster and the configuration as the ledger has them now."""

    state: State

    def are_on(self, pod: Json, owner: Json | None) -> bool:
        """Whether what the pod asks for does not follow from it and its owner alone."""
        names = self._queue_names()
        by_name = bool(names) and queue_of(pod, owner)[0] in names
        by_name = by_name or bool(self._gpu_resource(pod))
        return by_name or asks_for_memory(pod) or bool(read_mark(pod, USE_MODEL, AVOID_MODEL))

    def read(self, pods: Sequence[Json], owner: Json | None) -> list[Json]:
        """Replace the pods that bear such marks; the other objects are unchanged."""
        return [self._in_our_words(pod, owner) if self.are_on(pod, owner) else pod for pod in pods]

    def queue(self, name: str) -> str:
        """Our queue for which another system's name stands."""
        return self._queue_names().get(name, name)

    def _queue_names(self) -> Mapping[str, str]:
        body = self.state.config.body
        return {} if body is None else body.queue_names

    def _gpu_resource(self, pod: Json) -> str:
        """The resource of GPUs that the pod asks for and the configuration alone knows; "" for none."""
        body = self.state.config.body
        if body is None or not body.gpu_resources:
            return ""
        resources = [mapping(each, "resources") for each in items(pod, "spec", "containers")]
        asked = {name for each in resources for part in ("limits", "requests") for name in mapping(each, part)}
        return next((each.resource for each in body.gpu_resources if each.resource in asked), "")

    def _in_our_words(self, pod: Json, owner: Json | None) -> Json:
        nodes = [node for node in self.state.nodes.values() if not node.gone]
        if asks_for_memory(pod):
            pod = with_share(pod, {node.gpu_memory_bytes for node in nodes if serves(node.device_profile, "share")})
        if read_mark(pod, USE_MODEL, AVOID_MODEL):
            labels = ((node.gpu_model, dict(node.labels)) for node in nodes if node.gpu_model)
            names = {(model, tuple(its.get(key, "") for key in MODEL_LABELS)) for model, its in labels}
            pod = with_models(pod, sorted(names))
        if resource := self._gpu_resource(pod):
            pod = _with(pod, "annotations", {GPU_RESOURCE_ANNOTATION: resource})
        queue = self._queue_names().get(queue_of(pod, owner)[0])
        return pod if queue is None else _with(pod, "labels", {QUEUE_LABEL: queue})


def asks_for_memory(pod: Json) -> bool:
    """Whether it says nothing but the memory: our own annotation counts before it."""
    notes = mapping(pod, "metadata", "annotations")
    return bool(text(notes, MEMORY)) and not text(notes, GPU_MILLI_ANNOTATION) and text(notes, DEVICES) in ("", "1")


def with_share(pod: Json, gpu_sizes: Iterable[int]) -> Json:
    """
    The pod with the share in our own annotations; as it is where no GPU of known memory has as much, or all of it is
    asked for: then the mark is refused by its name. `gpu_sizes` are bytes.
    """
    wanted = number_in(text(pod, "metadata", "annotations", MEMORY)) * 2**20
    # Strictly larger: all of a GPU's memory is a whole GPU and no share of one.
    larger = [size for size in gpu_sizes if size > wanted > 0]
    share = -(-wanted * GPU_MILLI // min(larger)) if larger else GPU_MILLI
    notes = {GPU_MILLI_ANNOTATION: str(share), GPU_MEMORY_ANNOTATION: str(wanted)}
    return pod if share >= GPU_MILLI else _with(pod, "annotations", notes)


def with_models(pod: Json, known: Sequence[GpuNames]) -> Json:
    """
    The pod with the models that it wants in our own annotation, and those that it does not in its node affinity.

    A word means each model whose name holds it, as in HAMi: `A10` is `A100`, too. Without a model that does, the words
    themselves are what it waits for. What is not wanted is said by node labels, so that a model that comes later and is
    none of it changes nothing.
    """
    wanted, unwanted = (_words(read_mark(pod, mark)) for mark in (USE_MODEL, AVOID_MODEL))
    if wanted:
        models = [model for model, labels in known if _is_meant(wanted, model, *labels)]
        said = models or [word.replace(" ", "-") for word in wanted]
        pod = _with(pod, "annotations", {GPU_MODELS_ANNOTATION: ",".join(dict.fromkeys(said))})
    for at, label in enumerate(MODEL_LABELS):
        values = sorted({labels[at] for _, labels in known if _is_meant(unwanted, labels[at])})
        pod = _off(pod, label, values) if values else pod
    return pod


def _words(value: str) -> list[str]:
    return [word for part in value.split(",") if (word := part.strip())]


def _is_meant(words: Iterable[str], *names: str) -> bool:
    plain = [name.casefold().translate(SEPARATORS) for name in names]
    return any(word.casefold().translate(SEPARATORS) in name for word in words for name in plain)


def _with(pod: Json, field: str, more: Json) -> Json:
    meta = mapping(pod, "metadata")
    return {**pod, "metadata": {**meta, field: {**mapping(meta, field), **more}}}


def _off(pod: Json, label: str, values: list[str]) -> Json:
    """The pod with one more condition in each term of its required node affinity, or in a first one."""
    spec = mapping(pod, "spec")
    affinity, nodes = mapping(spec, "affinity"), mapping(spec, "affinity", "nodeAffinity")
    condition = {"key": label, "operator": "NotIn", "values": values}
    terms = items(nodes, REQUIRED, "nodeSelectorTerms") or [{}]
    added = [{**term, "matchExpressions": [*items(term, "matchExpressions"), condition]} for term in terms]
    required = {**nodes, REQUIRED: {"nodeSelectorTerms": added}}
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": required}}}
