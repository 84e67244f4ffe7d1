"""Metrics of one process. Labels come from enums, the fixed list of services or the names of pools, never from ids."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from tessera.domain.devices.free_slots import Slots
from tessera.domain.devices.held_back import HoldsBack
from tessera_schemas.shard.services import SERVICES

HOP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
WAIT_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
COUNTED_EVENTS = (
    *("orphan_pod", "orphan_pod_deleted", "run_lost", "outage", "outage_over", "utilisation_not_read"),
    *("loop_blocked", "health_not_read"),
)
"""Log lines on which an alarm stands (deploy/alerts.yaml): counted, so that no alarm has to read logs."""
CLASSES_MAX = 64
"""Classes of devices of one pool that are shown: whoever administers the cluster names them."""
STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """
    Metrics of every service, in a registry of its own.

    Names follow OpenMetrics: `tessera_<noun>_<unit>`, counters ending in `_total`.
    """

    def __init__(self, service: str, of_process: bool = True) -> None:
        """`of_process`: with the CPU and memory of the process; where several share one, the first tells them."""
        if service not in SERVICES:
            raise ValueError(f"{service!r} is no service; labels come from the fixed list")
        self.registry = CollectorRegistry()
        r = self.registry
        hop = Histogram(
            "tessera_event_hop_seconds",
            "From a message's storing to its handling",
            ["service"],
            buckets=HOP_BUCKETS,
            registry=r,
        )
        self._hop = hop.labels(service)  # from 0, or what comes first would be no increase
        self._step = Histogram(
            "tessera_cycle_step_seconds", "One numbered step of a cycle", ["step"], buckets=STEP_BUCKETS, registry=r
        )
        self._steps: dict[StrEnum, Histogram] = {}
        self._reasons = Counter("tessera_reasons_total", "Every no, by its typed reason", ["reason"], registry=r)
        self.redeliveries = Counter("tessera_redeliveries_total", "Commands handed out again", registry=r)
        self.dead_letters = Counter("tessera_dlq_total", "Input that can never be handled", registry=r)
        self.conflicts = Counter("tessera_conflicts_total", "Compare-and-swaps that were lost", registry=r)
        self.prices_not_learnt = Counter(
            "tessera_prices_not_learnt_total", "Learning of a pool's prices that came to nothing", registry=r
        )
        self.queue_depth = Gauge("tessera_queue_depth", "Messages or jobs that wait", registry=r)
        self.leading = Gauge("tessera_leading", "1 while this replica leads its shard", registry=r)
        self._slots = Gauge(
            "tessera_slots",
            "Pods of so many GPUs that could start now: in the pool, and the most in one domain of a level",
            ["pool", "gpus", "level"],
            registry=r,
        )
        self._idle = Gauge("tessera_idle_gpus", "GPUs that no run holds, by cause", ["pool", "cause"], registry=r)
        self._by_rule = Gauge("tessera_held_back_gpus", "GPUs that can be had, by rule", ["pool", "rule"], registry=r)
        self.ledger_bytes = Gauge("tessera_ledger_bytes", "What the ledger holds", registry=r)
        self.ledger_bytes_max = Gauge(
            "tessera_ledger_bytes_max", "What it may hold; 0: nothing bounds it, or not seen yet", registry=r
        )
        self._devices = _class_devices(r)
        self._pool = Gauge("tessera_pool_gpus", "GPUs of the nodes of a pool", ["pool"], registry=r)
        self._backed_off = Gauge(
            "tessera_nodes_backed_off", "Nodes on which pods do not start or last", ["pool"], registry=r
        )
        self._sick = Gauge(
            "tessera_nodes_sick", "Nodes that are not well, by what is done", ["pool", "state"], registry=r
        )
        self._mig_late, self._mig_failed = _mig_changes(r)
        self.sharing, self.quotes = Sharing(r), GaugeGroup(r, QUOTE_GAUGES)
        self.clock_skew = Gauge(
            "tessera_clock_skew_seconds", "How far our clock is ahead of the ledger's; below 0: behind", registry=r
        )
        self.pods_of_others = Gauge(
            "tessera_pods_of_another_ledger", "Bound pods of this shard that another ledger made", registry=r
        )
        self.ledger_n = Gauge("tessera_ledger_n", "The newest ledger record this process has folded", registry=r)
        self._ready = Gauge("tessera_ready", "1 while a check of /readyz is well", ["check"], registry=r)
        self._events = Counter(
            "tessera_log_events_total", "Log lines on which an alarm stands, by their event", ["event"], registry=r
        )
        for event in COUNTED_EVENTS:  # from 0, too
            self._events.labels(event)
        self._short = Gauge("tessera_nodes_short", "Nodes that offer fewer devices than their runs hold", registry=r)
        self._waiting_for_node = Gauge(
            "tessera_runs_waiting_for_node", "Stopped runs that wait for a node that does not answer", registry=r
        )
        self._held_back = Gauge(
            "tessera_stops_held_back", "Runs that seem lost and go on, as too many seem lost at once", registry=r
        )
        self.stalled_runs = Gauge(
            "tessera_runs_stalled", "Runs that were warned of, as their pods report too little progress", registry=r
        )
        self._moves, self.promises = _moves_gpu_seconds(r), _promises(r)
        self.nodes_not_fenced = _nodes_not_fenced(r)
        self.node_test_broken = _test_broken(r)
        self.services_below_minimum = _below_minimum(r)
        self.reservations_unserved = _unserved(r)
        self.redis_bytes = Gauge("tessera_redis_bytes", "What Redis holds, as projection sees it", registry=r)
        self.redis_bytes_max = Gauge("tessera_redis_bytes_max", "The most that it may; 0 without a bound", registry=r)
        (_process if of_process else _service_alone)(r)

    @property
    def leads(self) -> bool:
        """Whether this replica leads its shard now."""
        (family,) = self.leading.collect()  # the registry would collect all its metrics for this one
        return any(sample.value == 1 for sample in family.samples)

    def hop(self, seconds: float) -> None:
        """Clocks of two machines differ, so that a hop may seem negative; it counts as zero."""
        self._hop.observe(max(seconds, 0.0))

    def step(self, step: StrEnum, seconds: float) -> None:
        """Observe how many seconds one numbered step of a cycle took."""
        of_step = self._steps.get(step)
        if of_step is None:
            of_step = self._steps[step] = self._step.labels(step.value)
        of_step.observe(seconds)

    def reason(self, reason: StrEnum, count: int = 1) -> None:
        """Count a no by its typed reason, `count` of them at once."""
        self._reasons.labels(reason.value).inc(count)

    def awaited(self, short: int, waiting: int, held_back: int) -> None:
        """Set what waits for an operator: nodes short of devices, stopped runs on silent nodes, runs held back."""
        self._short.set(short)
        self._waiting_for_node.set(waiting)
        self._held_back.set(held_back)

    def moves_scored(self, gpu_seconds: Mapping[str, int]) -> None:
        """Count what moves for a job that has its room now were to gain and lose, and what they have."""
        for what, seconds in gpu_seconds.items():
            self._moves.labels(what.removesuffix("_gpu_seconds")).inc(seconds)

    def readiness(self, texts: Mapping[str, str]) -> None:
        """Every check of /readyz with its text, `ok` when well."""
        for name, text in texts.items():
            self._ready.labels(name).set(text == "ok")

    def logged(self, event: str) -> None:
        """Count a log line by its event; events on which no alarm stands are left out."""
        if event in COUNTED_EVENTS:
            self._events.labels(event).inc()

    def nodes_backed_off(self, pools: Mapping[str, int]) -> None:
        """Number of nodes of each pool that take no pods since pods did not start or last on them."""
        self._backed_off.clear()
        for pool, count in pools.items():
            self._backed_off.labels(pool).set(count)

    def nodes_sick(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Number of nodes that are not well, by pool and by what is done about them."""
        self._sick.clear()
        for labels, count in counts.items():
            self._sick.labels(*labels).set(count)

    def mig_changes(self, pools: Mapping[str, tuple[int, int]]) -> None:
        """Number of each pool's changes of MIG geometry that take too long, and of its nodes where one failed."""
        self._mig_late.clear()
        self._mig_failed.clear()
        for pool, (late, failed) in pools.items():
            self._mig_late.labels(pool).set(late)
            self._mig_failed.labels(pool).set(failed)

    def left_of_pools(self, pools: Iterable[Slots]) -> None:
        """
        The labels are bounded by the configuration and by the largest node; a pool that went is not shown. Of classes
        of devices a pool has those with most devices, `CLASSES_MAX` of them.
        """
        self._slots.clear()
        self._idle.clear()
        self._by_rule.clear()
        self._pool.clear()
        self._devices.clear()
        for left in pools:
            self._pool.labels(left.pool).set(left.gpus)
            for rule in HoldsBack:
                milli = sum(each.gpu_milli for each in left.held_back if each.rule is rule)
                self._by_rule.labels(left.pool, rule.value).set(milli / 1000)
            for size in left.sizes:
                self._slots.labels(left.pool, str(size.gpus), "pool").set(size.slots)
                for level, most in size.largest:
                    self._slots.labels(left.pool, str(size.gpus), level).set(most)
            for cause, milli in left.stranded:
                self._idle.labels(left.pool, cause.value).set(milli / 1000)
            for name, *numbers in sorted(left.device_classes, key=lambda use: (-use[1], use[0]))[:CLASSES_MAX]:
                for state, number in zip(("offered", "taken", "tainted"), numbers, strict=True):
                    self._devices.labels(left.pool, name, state).set(number)


def _class_devices(r: CollectorRegistry) -> Gauge:
    told = "Devices that drivers publish on the nodes of a pool, by class: offered, of which taken and tainted"
    return Gauge("tessera_class_devices", told, ["pool", "device_class", "state"], registry=r)


def _test_broken(registry: CollectorRegistry) -> Gauge:
    text = "Nodes on which the test of suspected nodes failed, if it passed nowhere"
    return Gauge("tessera_node_test_broken", text, registry=registry)


def _unserved(registry: CollectorRegistry) -> Gauge:
    text = "Reservations for somebody, now or within a day, of which nodes are gone, not ready or drained"
    return Gauge("tessera_reservations_unserved", text, registry=registry)


def _below_minimum(registry: CollectorRegistry) -> Gauge:
    text = "Services that run fewer replicas than are guaranteed"
    return Gauge("tessera_services_below_minimum", text, registry=registry)


def _nodes_not_fenced(r: CollectorRegistry) -> Gauge:
    text = "Lost or sick nodes that are to be off and are not: the webhook failed, or too many were turned off lately"
    return Gauge("tessera_nodes_not_fenced", text, ["why"], registry=r)


def _moves_gpu_seconds(r: CollectorRegistry) -> Counter:
    text = "GPU time that moves were foretold to gain and to lose, and that they gained and lost"
    return Counter("tessera_moves_gpu_seconds_total", text, ["what"], registry=r)


def _promises(r: CollectorRegistry) -> Counter:
    text = "Promised starts by what became of them: kept, broken, or dropped with the job"
    return Counter("tessera_promises_total", text, ["outcome"], registry=r)


def _mig_changes(r: CollectorRegistry) -> tuple[Gauge, Gauge]:
    late, failed = "Changes of MIG geometry that take too long", "Nodes left alone as a change of MIG geometry failed"
    return (
        Gauge("tessera_mig_changes_late", late, ["pool"], registry=r),
        Gauge("tessera_mig_changes_failed", failed, ["pool"], registry=r),
    )


def _process(r: CollectorRegistry) -> None:
    """CPU, memory, and since when it runs."""
    ProcessCollector(registry=r)


def _service_alone(r: CollectorRegistry) -> None:
    Gauge("process_start_time_seconds", "Start of the service within its process", registry=r).set_to_current_time()


class GaugeGroup:
    """Gauges that are told together; who is not named any more is not shown."""

    def __init__(self, r: CollectorRegistry, gauges: Iterable[tuple[str, str, list[str]]]) -> None:
        self._gauges = {name: Gauge(f"tessera_{name}", text, labels, registry=r) for name, text, labels in gauges}

    def show(self, values: Iterable[tuple[str, tuple[str, ...], float]]) -> None:
        """All of them as (metric, labels, value)."""
        for gauge in self._gauges.values():
            gauge.clear()
        for name, labels, value in values:
            self._gauges[name].labels(*labels).set(value)


QUOTE_GAUGES = (
    ("quotes_scored", "Quotes of the last weeks whose jobs have started", ["pool"]),
    ("quotes_held_ratio", "Part of them that started within what was told, by bound or interval", ["pool", "told"]),
    ("quote_error_seconds", "Median absolute error of their medians, and of naive predictors", ["pool", "predictor"]),
)
SHARING_GAUGES = (
    ("queue_nominal_gpus", "Nominal quota of a queue itself, over its flavors", ["queue"]),
    ("queue_waiting_jobs", "Jobs that are in line; not those on hold or in back-off", ["queue"]),
    ("queue_head_submitted_timestamp_seconds", "When the first in line was submitted", ["queue"]),
    ("held_idle_gpus", "GPUs of runs that use none of theirs now", ["pool", "tenant", "queue"]),
    ("held_unmeasured_gpus", "GPUs of runs of which that is not known", ["pool", "tenant", "queue"]),
    ("tenant_held_gpus", "GPUs that a tenant's runs hold in a queue", ["tenant", "queue"]),
    ("tenant_asked_gpus", "GPUs that a tenant's live jobs ask for or grew by", ["tenant"]),
    ("tenant_gpus_max", "A tenant's limit of those, where it has one", ["tenant"]),
    ("tenant_jobs", "Live jobs of a tenant", ["tenant"]),
    ("tenant_counted", "What counts against a tenant's limit, where it has one", ["tenant", "limit"]),
    ("tenant_counted_max", "That limit", ["tenant", "limit"]),
    ("tenant_weight", "A tenant's part of a queue that others use, too", ["tenant"]),
)


class Sharing(GaugeGroup):
    """Quota and use; labels are queues and tenants, which the configuration bounds."""

    def __init__(self, r: CollectorRegistry) -> None:
        self._waited = Histogram(
            "tessera_queue_wait_seconds",
            "From a job's submit to its first allocation",
            ["queue"],
            buckets=WAIT_BUCKETS,
            registry=r,
        )
        super().__init__(r, SHARING_GAUGES)

    def waited(self, queue: str, seconds: float) -> None:
        """Observe seconds from a job's submit to its first allocation; a negative wait counts as zero."""
        self._waited.labels(queue).observe(max(seconds, 0.0))
