"""Small pools for the tests of the placement core."""

from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, PoolSize

WHOLE = 1000


def room(*free: int, cpu: int = 96_000, memory: int = 1000, pods: int = 100, model: int = 0) -> NodeRoom:
    return NodeRoom(cpu, memory, pods, model, free)


def pool(*rooms: NodeRoom, policy: str = "bestfit", order: list[int] | None = None, seed: int = 0) -> Packer:
    size = PoolSize(nodes=len(rooms), devices=8, models=4, largest_cpu=128_000)
    packer = Packer(size, policy, order, seed)
    for n, each in enumerate(rooms):
        packer.set_node(n, each)
    return packer


def whole(count: int = 1, cpu: int = 1000, memory: int = 1, models: int = 0) -> Ask:
    return Ask(cpu, memory, count, WHOLE, models)


def share(milli: int, cpu: int = 1000, memory: int = 1, models: int = 0) -> Ask:
    return Ask(cpu, memory, 1, milli, models)


def without_gpu(cpu: int = 1000, memory: int = 1) -> Ask:
    return Ask(cpu, memory)
