# mypy: disable-error-code="no-any-return"
"""Whether a pod of a class fits a node, which device it takes by default, and what taking changes."""

from tessera.engine.pricing.arrays import WHOLE, Classes, Nodes
from tessera.engine.pricing.compiled import compiled_lean


@compiled_lean
def whole_free(nodes: Nodes, n: int) -> int:
    """Devices of which nothing is taken."""
    found = 0
    for slot in range(nodes.gpus[n]):
        if nodes.free[n, slot] == WHOLE:
            found += 1
    return found


@compiled_lean
def gpu_free(nodes: Nodes, n: int) -> int:
    """Thousandths of a GPU that are free on all devices together."""
    total = 0
    for slot in range(nodes.gpus[n]):
        total += nodes.free[n, slot]
    return total


@compiled_lean
def tightest(nodes: Nodes, n: int, milli: int) -> int:
    """The device with the least left that holds the share, then the lowest; -1 when none does."""
    best, left = -1, WHOLE + 1
    for slot in range(nodes.gpus[n]):
        free = nodes.free[n, slot]
        if milli <= free < left:
            best, left = slot, free
    return best


@compiled_lean
def model_fits(nodes: Nodes, classes: Classes, t: int, n: int) -> bool:
    """Tells whether class `t` allows the GPU model of node `n`; a class that names no model allows all."""
    return classes.models[t] == 0 or (classes.models[t] >> nodes.model[n]) & 1 == 1


@compiled_lean
def fits(nodes: Nodes, classes: Classes, t: int, n: int) -> bool:
    """Tells whether node `n` has room for a pod of class `t` now."""
    if nodes.cpu[n] < classes.cpu[t] or not model_fits(nodes, classes, t, n):
        return False
    if classes.devices[t] == 0:
        return True
    if classes.milli[t] < WHOLE:
        return tightest(nodes, n, classes.milli[t]) >= 0
    return whole_free(nodes, n) >= classes.devices[t]


@compiled_lean
def take(nodes: Nodes, classes: Classes, t: int, n: int, slot: int) -> None:
    """Place one pod: a share on the device `slot`, whole GPUs on the lowest free devices."""
    nodes.cpu[n] -= classes.cpu[t]
    if classes.devices[t] == 0:
        return
    if classes.milli[t] < WHOLE:
        nodes.free[n, slot] -= classes.milli[t]
        return
    wanted = classes.devices[t]
    for device in range(nodes.gpus[n]):
        if wanted > 0 and nodes.free[n, device] == WHOLE:
            nodes.free[n, device] = 0
            wanted -= 1
