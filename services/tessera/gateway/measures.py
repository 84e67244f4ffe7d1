"""Metrics of the gateway beside those of every service; labels are route names and statuses, never ids."""

from prometheus_client import Counter, Gauge

from tessera.kernel.service.metrics import Metrics
from tessera_schemas.reasons import Code


class Measures:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        registry = metrics.registry
        self.requests = Counter(
            "tessera_gateway_requests_total", "Requests answered", ["route", "status"], registry=registry
        )
        self.streams = Gauge("tessera_gateway_event_streams", "Event streams that are open", registry=registry)
        self.connections = Gauge("tessera_gateway_connections", "Connections that are open", registry=registry)
        self.turned_away = Counter(
            "tessera_gateway_connections_turned_away_total",
            "Connections that were closed at once, by the setting that they were over",
            ["limit"],
            registry=registry,
        )
        self.dropped = Counter(
            "tessera_gateway_slow_readers_total", "Event streams dropped for slow reading", registry=registry
        )
        self.logs = Counter(
            "tessera_gateway_logs_collected_total",
            "Logs of pods at the end of their runs, by what came of them",
            ["outcome"],
            registry=registry,
        )
        self.log_bytes = Gauge("tessera_gateway_stored_log_bytes", "Bytes that stored logs count", registry=registry)
        self.log_bytes_max = Gauge("tessera_gateway_stored_log_bytes_max", "Their bound in all", registry=registry)
        self.log_tenants_full = Gauge(
            "tessera_gateway_stored_log_tenants_full", "Tenants that use nine tenths of their share", registry=registry
        )
        self.logs_gone = Counter(
            "tessera_gateway_stored_logs_gone_total", "Logs removed to make room for newer ones", registry=registry
        )

    def reason(self, code: Code) -> None:
        """Counts one refusal by its reason code."""
        self._metrics.reason(code)
