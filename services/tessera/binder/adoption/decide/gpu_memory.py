"""
KAI's `gpu-memory`: a share of one GPU that is said in MiB of its memory. Pure.

How large a share that is depends on the GPU. It is taken of the smallest GPU in the shard that has more memory, so that
it is enough wherever there is as much; of a larger GPU it is more than was asked for.
"""

from collections.abc import Iterable, Sequence

from tessera.binder.workloads.reading import mapping, number_in, text
from tessera.domain.state import State
from tessera_schemas.base import Json
from tessera_schemas.cluster.devices import serves
from tessera_schemas.cluster.labels import GPU_MEMORY_ANNOTATION, GPU_MILLI_ANNOTATION
from tessera_schemas.job import GPU_MILLI

MARK, DEVICES = "gpu-memory", "gpu-fraction-num-devices"


def sizes_of_shared_gpus(state: State) -> list[int]:
    """The known memory of the GPUs of which nodes give shares, in bytes."""
    found = (node for node in state.nodes.values() if not node.gone and serves(node.device_profile, "share"))
    return sorted({node.gpu_memory_bytes for node in found if node.gpu_memory_bytes})


def asks_for_memory(pod: Json) -> bool:
    """Whether it says nothing but the memory: our own annotation counts before it."""
    notes = mapping(pod, "metadata", "annotations")
    return bool(text(notes, MARK)) and not text(notes, GPU_MILLI_ANNOTATION) and text(notes, DEVICES) in ("", "1")


def with_share(pod: Json, gpu_sizes: Iterable[int]) -> Json:
    """
    The pod with the share in our own annotations; as it is where no GPU of known memory has as much, or all of it is
    asked for: then the mark is refused by its name. `gpu_sizes` are bytes.
    """
    wanted = number_in(text(pod, "metadata", "annotations", MARK)) * 2**20
    # Strictly larger: all of a GPU's memory is a whole GPU and no share of one.
    larger = [size for size in gpu_sizes if size > wanted > 0]
    share = -(-wanted * GPU_MILLI // min(larger)) if larger else GPU_MILLI
    if share >= GPU_MILLI:
        return pod
    notes = {GPU_MILLI_ANNOTATION: str(share), GPU_MEMORY_ANNOTATION: str(wanted)}
    meta = mapping(pod, "metadata")
    return {**pod, "metadata": {**meta, "annotations": {**mapping(meta, "annotations"), **notes}}}


def with_shares(pods: Sequence[Json], gpu_sizes: Sequence[int]) -> list[Json]:
    """Replace the pods that ask for GPU memory; the other objects are unchanged."""
    return [with_share(pod, gpu_sizes) if asks_for_memory(pod) else pod for pod in pods]
