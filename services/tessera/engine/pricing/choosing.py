# mypy: disable-error-code="no-any-return"
"""
Score and device of one class on one node by the price-aware policy, on arrays; and the best node of a class.

The tie rule: among equal scores the node with the lowest `order` wins; on a node, whole GPUs take the lowest free
devices, and a share the device after which the node is worth most, then the lowest.
"""

from typing import NamedTuple

from tessera.engine.pricing.arrays import WHOLE, Classes, Ints, Nodes
from tessera.engine.pricing.best import NO_KEY, OFFSET, Best, build_maxima, changed, key_of, order_of, raise_maxima
from tessera.engine.pricing.compiled import compiled_lean
from tessera.engine.pricing.fitting import fits, gpu_free, take, tightest
from tessera.engine.pricing.fragmentation import PublishedWorkload, usable
from tessera.engine.pricing.worth import EMPTY, WorthArrays, best_split, level_of, look_at, state_with_fewer
from tessera.engine.scoring import price_aware
from tessera.engine.scoring.worth import UNIT

NOWHERE = -1


class Core(NamedTuple):
    """Arrays that a decision reads or changes."""

    nodes: Nodes
    classes: Classes
    best: Best
    by_order: Ints  # the node of each order
    known: PublishedWorkload
    worth: WorthArrays
    cpu_per_gpu: int  # thousandths of a CPU that the usual pods ask for beside a GPU


kept_worth = compiled_lean(price_aware.kept_worth)
pull = compiled_lean(price_aware.pull)


@compiled_lean
def choice(
    nodes: Nodes, classes: Classes, known: PublishedWorkload, worth: WorthArrays, cpu_per_gpu: int, t: int, n: int
) -> tuple[int, int]:
    """
    Score and device (-1: none, or the lowest free ones) of a class on a node that it fits.

    The parts of `Core` come one by one, here and below: taking a part out of it costs more than a score.
    """
    gpu = gpu_free(nodes, n)
    # What the node is worth as it is does not depend on the class: it is reckoned once and serves all of them until the
    # node changes.
    if look_at(worth, nodes, n):
        earn = worth.spare[state_with_fewer(worth, nodes, n, 0), level_of(worth, nodes.cpu[n])]
        use = usable(nodes, known, n, nodes.cpu[n], -1, 0, 0)
        worth.before[n] = kept_worth(earn, gpu, use, known.total, nodes.cpu[n], cpu_per_gpu)
    base = worth.before[n] + pull(nodes.cpu[n], gpu)
    cpu = nodes.cpu[n] - classes.cpu[t]
    level = level_of(worth, cpu)
    count, milli = classes.devices[t], classes.milli[t]
    gpu -= count * milli
    # Whole GPUs are interchangeable, so that there is no device to choose.
    if count == 0 or milli == WHOLE:
        earn = worth.spare[state_with_fewer(worth, nodes, n, count), level]
        use = usable(nodes, known, n, cpu, -1, 0, count)
        return kept_worth(earn, gpu, use, known.total, cpu, cpu_per_gpu) - base, -1
    best, slot = -OFFSET, -1
    model_class = worth.model_class[nodes.model[n]]
    # One device for each distinct rest, and one that is untouched: equal rests give equal worth, however many devices
    # have them.
    for option in range(worth.rests.shape[1] + 1):
        if option < worth.rests.shape[1] and worth.rests[n, option] > 0:
            rest, device, state = worth.rests[n, option], worth.slots[n, option], worth.without[n, option]
            last = False
        else:
            rest, device, state, last = WHOLE, tightest(nodes, n, WHOLE), EMPTY, True
            if device >= 0:
                state = state_with_fewer(worth, nodes, n, 1)
        if device >= 0 and rest >= milli:
            # The device after the pod and all other devices without it share the CPU that is left: one (max, +) step
            # over two tables that are there already.
            earn = best_split(worth.device[model_class, (rest - milli) // UNIT], worth.spare[state], level)
            use = usable(nodes, known, n, cpu, device, milli, 0)
            after = kept_worth(earn, gpu, use, known.total, cpu, cpu_per_gpu)
            if after > best or (after == best and device < slot):
                best, slot = after, device
        if last:
            break
    return best - base, slot


@compiled_lean
def fresh_key(
    nodes: Nodes, classes: Classes, known: PublishedWorkload, worth: WorthArrays, cpu_per_gpu: int, t: int, n: int
) -> int:
    """Key of node `n` for class `t`, judged as the node is now; NO_KEY where a pod of the class does not fit."""
    if not fits(nodes, classes, t, n):
        return NO_KEY
    return key_of(choice(nodes, classes, known, worth, cpu_per_gpu, t, n)[0], nodes.order[n])


@compiled_lean
def catch_up(
    nodes: Nodes, classes: Classes, known: PublishedWorkload, worth: WorthArrays, cpu_per_gpu: int, best: Best, t: int
) -> None:
    """Bring the keys of a class up to date with all changed nodes."""
    ring, now = best.changes.shape[0], best.counts[0]
    # The ring has been written over since: which nodes changed is not known any more.
    if best.cursor[t] < 0 or now - best.cursor[t] >= ring:
        for n in range(nodes.cpu.shape[0]):
            best.keys[t, n] = fresh_key(nodes, classes, known, worth, cpu_per_gpu, t, n)
        build_maxima(best, t)
    else:
        best.counts[1] += 1
        for change in range(best.cursor[t], now):
            n = best.changes[change % ring]
            # A node that changed several times is looked at once: its key goes by what it is now.
            if best.stamp[n] != best.counts[1]:
                best.stamp[n] = best.counts[1]
                key = fresh_key(nodes, classes, known, worth, cpu_per_gpu, t, n)
                if key != best.keys[t, n]:
                    best.keys[t, n] = key
                    raise_maxima(best, t, n)
    best.cursor[t] = now


@compiled_lean
def best_node(core: Core, t: int) -> int:
    """The node where a pod of the class should go now, or NOWHERE."""
    catch_up(core.nodes, core.classes, core.known, core.worth, core.cpu_per_gpu, core.best, t)
    key = core.best.keys[t, core.best.starts[-1]]
    return NOWHERE if key == NO_KEY else core.by_order[order_of(key)]


@compiled_lean
def place_all(core: Core, wanted: Ints, nodes: Ints) -> None:
    """Place pods one after the other, by class; `nodes` becomes where each went, NOWHERE for what fits no node."""
    for at in range(wanted.shape[0]):
        t, n = wanted[at], best_node(core, wanted[at])
        nodes[at] = n
        if n >= 0:
            slot = choice(core.nodes, core.classes, core.known, core.worth, core.cpu_per_gpu, t, n)[1]
            take(core.nodes, core.classes, t, n, slot)
            core.worth.seen[n] = EMPTY
            changed(core.best, n)
