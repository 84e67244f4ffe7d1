# mypy: disable-error-code="no-any-return"
"""
Scores of the published policies, on integers 0 to 100, higher wins.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, as its simulator computes them. Best fit is stretched
there to 0..100 over the nodes that fit; that keeps the order and every tie, and is left out. On equal scores the first
node in a fixed order wins: the published numbers rest on it.
"""

from tessera.engine.pricing.arrays import WHOLE, Classes, Nodes
from tessera.engine.pricing.compiled import compiled_lean
from tessera.engine.pricing.fitting import gpu_free, tightest, whole_free

CPU_SCALE = 128_000
GPU_SCALE = 8_000
RATIO = CPU_SCALE // GPU_SCALE


@compiled_lean
def bestfit_score(nodes: Nodes, classes: Classes, t: int, n: int) -> int:
    """The less CPU and GPU is left after, the better."""
    gpu_left = gpu_free(nodes, n) - classes.devices[t] * classes.milli[t]
    cpu_left = nodes.cpu[n] - classes.cpu[t]
    return (100 * CPU_SCALE - 50 * (cpu_left + RATIO * gpu_left)) // CPU_SCALE


@compiled_lean
def dotprod_score(nodes: Nodes, classes: Classes, t: int, n: int) -> int:
    """The less demand and free room point the same way, the better."""
    cpu = nodes.cpu[n] * classes.cpu[t]
    gpu = gpu_free(nodes, n) * classes.devices[t] * classes.milli[t]
    square = CPU_SCALE * CPU_SCALE
    return (100 * square - 50 * (cpu + RATIO * RATIO * gpu)) // square


@compiled_lean
def packing_score(nodes: Nodes, classes: Classes, t: int, n: int) -> int:
    """Devices in use first, then free devices of a node in use, then the smallest empty node."""
    count = classes.devices[t]
    if count == 0:
        return 0
    whole = whole_free(nodes, n)
    if whole == nodes.gpus[n]:
        return max(33 - whole, whole)
    if classes.milli[t] == WHOLE:
        return max(50 - count, 33)
    left = nodes.free[n, tightest(nodes, n, classes.milli[t])]
    if left == WHOLE:
        return 49
    return max(100 - left * 100 // WHOLE // 10, 50)


@compiled_lean
def clustering_score(nodes: Nodes, classes: Classes, t: int, n: int) -> int:
    """Nodes with only this kind of pod first, then this kind among others, then empty ones; the fuller the better."""
    kind = classes.kind[t]
    if kind < 0:
        return 0
    others = 0
    for other in range(nodes.kinds.shape[1]):
        if other != kind and nodes.kinds[n, other] > 0:
            others += 1
    band = 50 if nodes.kinds[n, kind] > 0 else 0
    if others == 0:
        band += 25
    return band + 25 * (GPU_SCALE - gpu_free(nodes, n)) // GPU_SCALE
