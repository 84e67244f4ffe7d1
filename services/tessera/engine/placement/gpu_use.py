"""Use of a pool's GPUs at this moment, as it is summed over time: by tenant, and idle ones by cause."""

from collections import Counter

from tessera.domain.devices.free_slots import Slots, Stranded
from tessera.domain.devices.gpu_use import PoolUse
from tessera.domain.state import State


def pool_use(state: State, left: Slots) -> PoolUse:
    """Use of the pool whose free slots are `left`; what can be had is under the reason why nobody takes it."""
    held: Counter[str] = Counter()
    for who, amount in state.index.held.items():
        if len(who) == 2 and state.tree.pool(who[0]) == left.pool:  # with a user it is a part of the same
            held[who[1]] += amount.gpu_milli
    idle: Counter[str] = Counter()
    for cause, milli in left.stranded:
        idle[left.unclaimed if cause is Stranded.NONE else cause] += milli
    return PoolUse(
        left.pool,
        tuple(sorted((tenant, milli) for tenant, milli in held.items() if milli)),
        left.unused.gpu_milli,
        tuple((str(cause), milli) for cause, milli in idle.items() if milli),
    )
