"""Single nodes and pods in the form that a policy looks at."""

from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import replace
from tessera_lab.pack.baselines import nodes_for
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod


def trace_of(*nodes: TraceNode, pods: tuple[TracePod, ...] = ()) -> Trace:
    return Trace("made", nodes, pods or (whole(),))


def node(*free: int, policy: str = "bestfit", cpu: int = 96_000, memory: int = 1000, model: str = "A") -> Node:
    (made,) = nodes_for(policy, trace_of(TraceNode(cpu, memory, len(free), model)), 1)
    return replace(made, gpu_free=free)


def whole(count: int = 1, cpu: int = 1000, memory: int = 1, models: tuple[str, ...] = ()) -> TracePod:
    return TracePod(cpu, memory, count, 1000, models)


def share(milli: int, cpu: int = 1000, memory: int = 1, models: tuple[str, ...] = ()) -> TracePod:
    return TracePod(cpu, memory, 1, milli, models)


def without_gpu(cpu: int = 1000, memory: int = 1) -> TracePod:
    return TracePod(cpu, memory, 0, 0)
