"""Settings of reclamation."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tessera.kernel.process.settings import ServiceSettings
from tessera.reclamation.prices.decide import FROM_ARRIVALS


class ReclamationSettings(ServiceSettings):
    service: ClassVar[str] = "reclamation"

    nice: int = Field(5, ge=0, le=19, description="First what starts work, then what follows it")
    recheck_seconds: float = Field(
        1.0, gt=0, le=60, description="How often runs that are not absent yet are looked at again"
    )
    unsaid_end_seconds: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="How long a run that ended by itself while it was to be stopped is not released, until the binder "
        "has said how it ended",
    )
    lists_at_once: int = Field(8, ge=1, le=64, description="Lists of the API server in flight")
    node_gone_seconds: float = Field(
        10.0, ge=0, le=3600, description="A node without an object for so long is gone; one that is back earlier is not"
    )
    outage_percent: int = Field(
        55, ge=0, le=100, description="No node counts as lost for its silence while more of them than this are silent"
    )
    overtime_seconds: int = Field(
        60, ge=0, le=86_400, description="Beyond its time limit, before a run that its kubelets did not end is stopped"
    )
    utilisation_url: str = Field("", pattern="^(https?://.+)?$", description="Prometheus; empty: nobody measures GPUs")
    utilisation_query: str = Field(
        "max by (namespace, pod, exported_namespace, exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL[1m]))",
        min_length=1,
        description="One sample per pod, in percent; its window must not be shorter than `utilisation_seconds`",
    )
    utilisation_exporter: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="Where there is no Prometheus: the exporter of each node, such as http://{node}:9400/metrics",
    )
    utilisation_metric: str = Field(
        "DCGM_FI_DEV_GPU_UTIL",
        pattern="^[a-zA-Z_:][a-zA-Z0-9_:]*$",
        description="Of the exporters: the use of a GPU in percent, with labels namespace and pod",
    )
    utilisation_busy_percent: int = Field(3, ge=1, le=100, description="From here on a GPU counts as used")
    utilisation_seconds: int = Field(30, ge=1, le=3600, description="How often the use of GPUs is asked for")
    heads: int = Field(
        32, ge=1, le=512, description="For how many jobs at the front of each pool lent quota is taken back"
    )
    prices: Literal["auto", "rehearsed", "auction", "off"] = Field(
        "auto", description="How what pods are worth is learnt; auto: rehearsed where numba is installed, else auction"
    )
    learn_from_arrivals: int = Field(
        FROM_ARRIVALS, ge=1, le=1_000_000, description="Pods that a pool was asked for before its prices are learnt"
    )
    learning_seconds: float = Field(900.0, gt=0, le=86_400, description="Learning that takes longer is given up")

    @property
    def measures(self) -> bool:
        """Whether anybody measures the use of GPUs."""
        return bool(self.utilisation_url or self.utilisation_exporter)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.utilisation_url and self.utilisation_exporter:
            raise ValueError("utilisation_url and utilisation_exporter: name one of them, not both")
        return self
