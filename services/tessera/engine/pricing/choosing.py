# mypy: disable-error-code="no-any-return"
"""
Score and device of one class on one node, by policy; and the best node of a class.

The tie rule of all policies: among equal scores the node with the lowest `order` wins; on a node, whole GPUs take the
lowest free devices, and a share the best device for the policy, then the lowest.
"""

from typing import NamedTuple

from tessera.engine.pricing.arrays import WHOLE, Classes, Ints, Nodes
from tessera.engine.pricing.best import NO_KEY, OFFSET, Best, build_maxima, changed, key_of, order_of, raise_maxima
from tessera.engine.pricing.chance import mixed
from tessera.engine.pricing.compiled import compiled_lean
from tessera.engine.pricing.fitting import fits, give_back, gpu_free, take, tightest
from tessera.engine.pricing.fragmentation import PublishedWorkload, fgd_choice, usable
from tessera.engine.pricing.published import bestfit_score, clustering_score, dotprod_score, packing_score
from tessera.engine.pricing.worth import EMPTY, WorthArrays, best_split, level_of, look_at, state_with_fewer
from tessera.engine.scoring.worth import UNIT

RANDOM, BESTFIT, DOTPROD, PACKING, CLUSTERING, FGD, TESSERA = range(7)
FRAGMENTED, STRANDED, FULL, CPU_PER_GPU = range(4)
NOWHERE = -1


class Scales(NamedTuple):
    """What the policies measure with."""

    weights: Ints  # of TESSERA, see `tessera_choice`
    steps: Ints  # of FGD
    chance: Ints  # (2,) of RANDOM: its seed, and placements asked for so far


class Core(NamedTuple):
    """Everything that a decision reads or moves."""

    policy: int
    nodes: Nodes
    classes: Classes
    best: Best
    by_order: Ints  # the node of each order
    known: PublishedWorkload
    worth: WorthArrays
    scales: Scales


@compiled_lean
def choice(
    policy: int,
    nodes: Nodes,
    classes: Classes,
    known: PublishedWorkload,
    worth: WorthArrays,
    scales: Scales,
    t: int,
    n: int,
) -> tuple[int, int]:
    """
    Score and device (-1: none, or the lowest free ones) of a class on a node that it fits.

    The parts of `Core` come one by one, here and below: taking a part out of it costs more than a score.
    """
    if policy == TESSERA:
        return tessera_choice(nodes, classes, known, worth, scales.weights, t, n)
    if policy == FGD:
        return fgd_choice(nodes, classes, known, scales.steps, t, n)
    slot = -1
    if classes.devices[t] > 0 and classes.milli[t] < WHOLE:
        slot = tightest(nodes, n, classes.milli[t])
    if policy == BESTFIT:
        return bestfit_score(nodes, classes, t, n), slot
    if policy == DOTPROD:
        return dotprod_score(nodes, classes, t, n), slot
    if policy == PACKING:
        return packing_score(nodes, classes, t, n), slot
    if policy == CLUSTERING:
        return clustering_score(nodes, classes, t, n), slot
    return random_choice(nodes, classes, scales.chance, t, n)


@compiled_lean
def random_choice(nodes: Nodes, classes: Classes, chance: Ints, t: int, n: int) -> tuple[int, int]:
    """Any node; a share takes any device that holds it."""
    milli, score = classes.milli[t], mixed(chance[0], chance[1], n)
    if classes.devices[t] == 0 or milli == WHOLE:
        return score, -1
    slot, highest = -1, -1
    for device in range(nodes.gpus[n]):
        drawn = mixed(chance[0] + 1, chance[1], n * 64 + device)
        if nodes.free[n, device] >= milli and drawn > highest:
            slot, highest = device, drawn
    return score, slot


@compiled_lean
def keep_worth(total: int, weights: Ints, earn: int, cpu: int, gpu: int, use: int) -> int:
    """
    How dear it is to keep a node as it would be: what its free part could earn, less what nobody could use.

    `earn` in millionths of a GPU, `gpu` thousandths free, `use` as `usable` gives it. Stranded are GPUs with less than
    the usual CPU beside them.
    """
    fragmented = (gpu * total - use) * 1000 // total
    stranded = max(0, gpu - cpu * 1000 // weights[CPU_PER_GPU]) * 1000
    return earn - (weights[FRAGMENTED] * fragmented + weights[STRANDED] * stranded) // 1000


@compiled_lean
def tessera_choice(
    nodes: Nodes, classes: Classes, known: PublishedWorkload, worth: WorthArrays, weights: Ints, t: int, n: int
) -> tuple[int, int]:
    """
    Place where the worth of what stays free falls least; a small pull goes to fuller nodes.

    The pull is `weights[FULL]` millionths of a GPU for a node that is empty in CPU, and 0.6 of it in GPU.
    """
    gpu = gpu_free(nodes, n)
    if look_at(worth, nodes, n):
        earn = worth.spare[state_with_fewer(worth, nodes, n, 0), level_of(worth, nodes.cpu[n])]
        use = usable(nodes, known, n, nodes.cpu[n], -1, 0, 0)
        worth.before[n] = keep_worth(known.total, weights, earn, nodes.cpu[n], gpu, use)
    base = worth.before[n] + weights[FULL] * (5 * nodes.cpu[n] + 48 * gpu) // 640_000
    cpu = nodes.cpu[n] - classes.cpu[t]
    level = level_of(worth, cpu)
    count, milli = classes.devices[t], classes.milli[t]
    gpu -= count * milli
    if count == 0 or milli == WHOLE:
        earn = worth.spare[state_with_fewer(worth, nodes, n, count), level]
        return keep_worth(known.total, weights, earn, cpu, gpu, usable(nodes, known, n, cpu, -1, 0, count)) - base, -1
    best, slot = -OFFSET, -1
    model_class = worth.model_class[nodes.model[n]]
    for option in range(worth.rests.shape[1] + 1):
        if option < worth.rests.shape[1] and worth.rests[n, option] > 0:
            rest, device, state = worth.rests[n, option], worth.slots[n, option], worth.without[n, option]
            last = False
        else:
            rest, device, state, last = WHOLE, tightest(nodes, n, WHOLE), EMPTY, True
            if device >= 0:
                state = state_with_fewer(worth, nodes, n, 1)
        if device >= 0 and rest >= milli:
            earn = best_split(worth.device[model_class, (rest - milli) // UNIT], worth.spare[state], level)
            after = keep_worth(known.total, weights, earn, cpu, gpu, usable(nodes, known, n, cpu, device, milli, 0))
            if after > best or (after == best and device < slot):
                best, slot = after, device
        if last:
            break
    return best - base, slot


@compiled_lean
def fresh_key(
    policy: int,
    nodes: Nodes,
    classes: Classes,
    known: PublishedWorkload,
    worth: WorthArrays,
    scales: Scales,
    t: int,
    n: int,
) -> int:
    """Key of node `n` for class `t`, judged as the node is now; NO_KEY where a pod of the class does not fit."""
    if not fits(nodes, classes, t, n):
        return NO_KEY
    return key_of(choice(policy, nodes, classes, known, worth, scales, t, n)[0], nodes.order[n])


@compiled_lean
def catch_up(
    policy: int,
    nodes: Nodes,
    classes: Classes,
    known: PublishedWorkload,
    worth: WorthArrays,
    scales: Scales,
    best: Best,
    t: int,
) -> None:
    """Bring the keys of a class up to date with all changed nodes."""
    ring, now = best.changes.shape[0], best.counts[0]
    if best.cursor[t] < 0 or now - best.cursor[t] >= ring:
        for n in range(nodes.cpu.shape[0]):
            best.keys[t, n] = fresh_key(policy, nodes, classes, known, worth, scales, t, n)
        build_maxima(best, t)
    else:
        best.counts[1] += 1
        for change in range(best.cursor[t], now):
            n = best.changes[change % ring]
            if best.stamp[n] != best.counts[1]:
                best.stamp[n] = best.counts[1]
                key = fresh_key(policy, nodes, classes, known, worth, scales, t, n)
                if key != best.keys[t, n]:
                    best.keys[t, n] = key
                    raise_maxima(best, t, n)
    best.cursor[t] = now


@compiled_lean
def best_node(core: Core, t: int) -> int:
    """The node where a pod of the class should go now, or NOWHERE."""
    if core.policy == RANDOM:
        core.scales.chance[1] += 1
        core.best.cursor[t] = EMPTY
    catch_up(core.policy, core.nodes, core.classes, core.known, core.worth, core.scales, core.best, t)
    key = core.best.keys[t, core.best.starts[-1]]
    return NOWHERE if key == NO_KEY else core.by_order[order_of(key)]


@compiled_lean
def touch(core: Core, n: int) -> None:
    """A node has changed: what is known of it is stale."""
    core.worth.seen[n] = EMPTY
    changed(core.best, n)


@compiled_lean
def put(core: Core, t: int, n: int) -> int:
    """Place a pod on a node that it fits; the devices taken, as bits."""
    slot = choice(core.policy, core.nodes, core.classes, core.known, core.worth, core.scales, t, n)[1]
    devices = take(core.nodes, core.classes, t, n, slot)
    touch(core, n)
    return devices


@compiled_lean
def place_all(core: Core, wanted: Ints, nodes: Ints, devices: Ints) -> None:
    """Place pods one after the other; NOWHERE for those that fit no node."""
    for at in range(wanted.shape[0]):
        nodes[at] = best_node(core, wanted[at])
        devices[at] = put(core, wanted[at], nodes[at]) if nodes[at] >= 0 else 0


@compiled_lean
def place_one(core: Core, t: int) -> tuple[int, int]:
    """Places a pod of class `t` on its best node: the node and the devices taken as bits; NOWHERE if none fits."""
    n = best_node(core, t)
    return n, put(core, t, n) if n >= 0 else 0


@compiled_lean
def release(core: Core, t: int, n: int, devices: int) -> None:
    """Gives back what a pod of class `t` took on node `n`; `devices` are the bits that placing returned."""
    give_back(core.nodes, core.classes, t, n, devices)
    touch(core, n)
