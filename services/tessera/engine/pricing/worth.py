# mypy: disable-error-code="no-any-return"
"""
Worth of the free part of a node: the most that it could still earn.

Every kind of pod has a price. V(node) is the largest sum of prices of pods that would fit into what is free there: a
knapsack of shares and CPU on each device, and a split of the node's CPU between its devices. The parts are tables over
CPU (in levels of `step` thousandths):

- `device[m, s, c]`: one device with s units of `UNIT` thousandths free, and CPU c, on a node of model class m;
- `spare[state, c]`: a whole set of devices. A state is the model class, the number of untouched devices and the sorted
  rest of the others. States are made when first met, each from a smaller one by one (max, +) step, and are kept; when
  there is no room for more, all are forgotten. That changes the time an answer takes, never the answer.

Prices are integers, in millionths of a GPU. Models that may run the same kinds at the same prices share a class.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.engine.pricing.arrays import WHOLE, Ints, Nodes
from tessera.engine.pricing.compiled import COMPILED, compiled_lean
from tessera.engine.scoring.worth import UNIT, UNITS

EMPTY = -1

WorthArray = NDArray[np.int32]


class WorthArrays(NamedTuple):
    """Tables of the present prices, and what was made of them so far."""

    step: Ints  # (1,): thousandths of a CPU per level
    model_class: Ints  # by model
    scratch: Ints  # (UNITS + 1,): devices by what is left of them
    device: WorthArray  # (model classes, UNITS + 1, levels)
    same: Ints  # (model classes, UNITS + 1): the smallest rest of a device that could earn the same; 0: nothing
    root: WorthArray  # (model classes, devices + 1, levels): that many untouched devices and nothing else
    spare: WorthArray  # (states, levels)
    used: Ints  # (2,): states in use, and how often all were forgotten
    keys: Ints  # open addressing: parent state and added rest, EMPTY
    values: Ints
    before: Ints  # (nodes,): what the policy thinks the node is worth as it is
    seen: Ints  # (nodes,): when the rows here were made, as `used[1]`; EMPTY: it is stale
    rests: Ints  # (nodes, devices): distinct rests of used devices, by device number; 0 beyond the last
    slots: Ints  # (nodes, devices): the lowest device with that rest
    without: Ints  # (nodes, devices): the state without one device of that rest
    fewer: Ints  # (nodes, devices + 1): the state with so many untouched devices less, EMPTY until asked


def no_worth(nodes: int, devices: int, models: int, levels: int, states: int) -> WorthArrays:
    """All prices are 0."""
    return WorthArrays(
        step=np.ones(1, np.int64),
        model_class=np.zeros(models, np.int64),
        scratch=np.zeros(UNITS + 1, np.int64),
        device=np.zeros((1, UNITS + 1, levels), np.int32),
        same=np.zeros((1, UNITS + 1), np.int64),
        root=np.zeros((1, devices + 1, levels), np.int32),
        spare=np.zeros((states, levels), np.int32),
        used=np.zeros(2, np.int64),
        keys=np.full(4 * states, EMPTY, np.int64),
        values=np.zeros(4 * states, np.int64),
        before=np.zeros(nodes, np.int64),
        seen=np.full(nodes, EMPTY, np.int64),
        rests=np.zeros((nodes, devices), np.int64),
        slots=np.zeros((nodes, devices), np.int64),
        without=np.zeros((nodes, devices), np.int64),
        fewer=np.full((nodes, devices + 1), EMPTY, np.int64),
    )


def _best_split_loop(one: WorthArray, other: WorthArray, cpu: int) -> int:
    best = np.int32(0)
    for level in range(cpu + 1):
        best = max(best, np.int32(one[level] + other[cpu - level]))
    return int(best)


def _best_split_numpy(one: WorthArray, other: WorthArray, cpu: int) -> int:
    return int((one[: cpu + 1] + other[cpu::-1]).max())


best_split = compiled_lean(_best_split_loop) if COMPILED else _best_split_numpy
"""max over x of one[x] + other[cpu - x]: the CPU level `cpu` shared out between two parts."""


def smallest_with_same_worth(device: WorthArray) -> Ints:
    """`same` of `WorthArrays` for these device tables."""
    # Rests that could earn the same are one rest: fewer states, equal answers.
    differs = np.any(device[:, 1:] != device[:, :-1], axis=2)
    numbers = np.where(differs, np.arange(1, UNITS + 1), 0)
    return np.concatenate(
        [np.zeros((len(device), 1), np.int64), np.maximum.accumulate(numbers, axis=1)], axis=1, dtype=np.int64
    )


@compiled_lean
def level_of(worth: WorthArrays, cpu: int) -> int:
    """Level of the tables for so many thousandths of CPU; less than none is level 0, more than all the last."""
    return min(max(cpu, 0) // worth.step[0], worth.spare.shape[1] - 1)


@compiled_lean
def forget(worth: WorthArrays) -> None:
    """Begin anew: only the roots are known."""
    classes, devices = worth.root.shape[0], worth.root.shape[1]
    for model_class in range(classes):
        for whole in range(devices):
            for level in range(worth.spare.shape[1]):
                worth.spare[model_class * devices + whole, level] = worth.root[model_class, whole, level]
    worth.keys[:] = EMPTY
    worth.used[0] = classes * devices
    worth.used[1] += 1


@compiled_lean
def with_device(worth: WorthArrays, state: int, model_class: int, rest: int) -> int:
    """The state with one more used device, which has `rest` units free."""
    if rest == 0:
        return state
    # A rest is less than `UNITS` + 1, so that pairs have distinct keys. The table has four slots for each state and
    # therefore always a free one: the search ends.
    key, slots = state * (UNITS + 1) + rest, worth.keys.shape[0]
    at = (key * 2654435761) % slots
    while worth.keys[at] != EMPTY:
        if worth.keys[at] == key:
            return worth.values[at]
        at = (at + 1) % slots
    new = worth.used[0]
    worth.used[0] += 1
    worth.keys[at], worth.values[at] = key, new
    # A (max, +) step over all levels, quadratic in them; it is paid once per state and not once per question.
    one = worth.device[model_class, rest]
    for level in range(worth.spare.shape[1]):
        worth.spare[new, level] = best_split(one, worth.spare[state], level)
    return new


@compiled_lean
def state_of(worth: WorthArrays, nodes: Nodes, n: int, fewer: int, skip: int) -> int:
    """The state of a node with so many untouched devices less, and without the device `skip` (-1: with all)."""
    model_class, whole = worth.model_class[nodes.model[n]], 0
    units = worth.scratch
    units[:] = 0
    low = UNITS
    for slot in range(nodes.gpus[n]):
        free = nodes.free[n, slot]
        if free == WHOLE:
            whole += 1
        elif slot != skip:
            rest = worth.same[model_class, free // UNIT]
            units[rest] += 1
            low = min(low, rest)
    # Roots come first among the states, in this order (`forget`), so that the number of one is reckoned and not looked
    # up.
    state = model_class * worth.root.shape[1] + whole - fewer
    # Rests in ascending order: equal sets of devices go the same way through the states, and meet in one.
    for rest in range(low, UNITS):
        for _ in range(units[rest]):
            state = with_device(worth, state, model_class, rest)
    return state


@compiled_lean
def look_at(worth: WorthArrays, nodes: Nodes, n: int) -> bool:
    """Bring the row of a node up to date, all but `before`; whether it was stale."""
    devices = worth.rests.shape[1]
    # Checked before and not within a question: states that it holds must not be forgotten under it.
    if worth.used[0] + (devices + 2) * devices > worth.spare.shape[0]:  # as many as one question may add
        forget(worth)
    if worth.seen[n] == worth.used[1]:
        return False
    worth.seen[n] = worth.used[1]
    worth.fewer[n, :] = EMPTY
    found = 0
    for slot in range(nodes.gpus[n]):
        free = nodes.free[n, slot]
        known = free == WHOLE or free == 0
        for earlier in range(found):
            known = known or worth.rests[n, earlier] == free
        if not known:
            worth.rests[n, found], worth.slots[n, found] = free, slot
            worth.without[n, found] = state_of(worth, nodes, n, 0, slot)
            found += 1
    if found < worth.rests.shape[1]:
        worth.rests[n, found] = 0
    return True


@compiled_lean
def state_with_fewer(worth: WorthArrays, nodes: Nodes, n: int, whole: int) -> int:
    """The state of a node with so many untouched devices less; the row must be up to date."""
    state = worth.fewer[n, whole]
    if state == EMPTY:
        state = state_of(worth, nodes, n, whole, -1)
        worth.fewer[n, whole] = state
    return state
