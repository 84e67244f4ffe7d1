"""Metrics of the notifier beside those of every service."""

from prometheus_client import Counter

from tessera.kernel.service.metrics import Metrics


class Deliveries:
    """Attempts to deliver an event to a webhook, by outcome; labels name no tenant."""

    def __init__(self, metrics: Metrics) -> None:
        counter = Counter(
            "tessera_notifier_deliveries_total",
            "Attempts to deliver an event to a webhook",
            ["outcome"],
            registry=metrics.registry,
        )
        self.delivered, self.failed = counter.labels("delivered"), counter.labels("failed")
