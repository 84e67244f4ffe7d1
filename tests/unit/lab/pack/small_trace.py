"""A trace small enough for tests."""

from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod

CLUSTER = tuple([TraceNode(32_000, 1000, 4, "A")] * 3 + [TraceNode(16_000, 1000, 2, "B")] * 2)
PODS = (
    TracePod(4000, 10, 1, 1000),
    TracePod(2000, 10, 1, 470),
    TracePod(2000, 10, 1, 810, ("B",)),
    TracePod(1000, 5, 0, 0),
)
TRACE = Trace("small", CLUSTER, PODS * 4)
