"""Context of a service: the ports, its own name among the replicas, and where it reports its health."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.kernel import ids
from tessera.kernel.ports import Bus, Clock, Cluster, Ledger, ProjectionStore
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.service.spans import NO_SPANS, Spans
from tessera.kernel.tasks.shared import Shared


@dataclass(frozen=True, slots=True)
class Ports:
    """
    Every way to the world that a service has. A service is `async def serve(ports, settings, stop)` in its `main`:
    it runs until `stop` is set, finishes what is in flight and returns; it raises InvariantViolation to halt.

    `new_tx` gives transaction ids, `new_key` keys of runs; they are injected so that a simulated run is the same run
    again. `spans` takes what the service reports of jobs' traces. `shared` is the same for all services of a process.
    """

    clock: Clock
    bus: Bus
    ledger: Ledger
    store: ProjectionStore
    cluster: Cluster
    health: Health
    metrics: Metrics
    instance: str
    new_tx: Callable[[], str]
    spans: Spans = NO_SPANS
    new_key: Callable[[], bytes] = ids.run_key
    shared: Shared = field(default_factory=Shared)
