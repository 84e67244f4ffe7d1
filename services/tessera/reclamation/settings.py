"""Settings of reclamation."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tessera.kernel.process.settings import ServiceSettings
from tessera.reclamation.prices.decide import FROM_ARRIVALS

BY_GPU = "namespace, pod, exported_namespace, exported_pod, UUID, gpu, GPU_I_ID"
"""Labels by which a sample is told from that of another GPU."""


class ReclamationSettings(ServiceSettings):
    service: ClassVar[str] = "reclamation"

    recheck_seconds: float = Field(1.0, gt=0, le=60, description="Interval of looks at runs that are not absent yet")
    unsaid_end_seconds: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="Time that the release of a run, which ended by itself while being stopped, waits for the "
        "binder's report of its end",
    )
    lists_at_once: int = Field(8, ge=1, le=64, description="Concurrent list calls to the API server")
    node_gone_seconds: float = Field(
        10.0, ge=0, le=3600, description="Time without an object after which a node counts as gone"
    )
    outage_percent: int = Field(
        55, ge=0, le=100, description="Percentage of silent nodes above which no node counts as lost for its silence"
    )
    overtime_seconds: int = Field(
        60,
        ge=0,
        le=86_400,
        description="Time beyond the time limit after which a run that kubelets did not end is stopped",
    )
    utilisation_url: str = Field(
        "", pattern="^(https?://.+)?$", description="Address of Prometheus; empty: no measurement of GPUs by Prometheus"
    )
    utilisation_query: str = Field(
        f"max by ({BY_GPU}) (max_over_time(DCGM_FI_DEV_GPU_UTIL[1m]))",
        min_length=1,
        description="Query for the use of GPUs in percent, one sample per GPU of a pod; its window must not be shorter "
        "than `utilisation_seconds`. With one sample per pod only runs that use no GPU are found",
    )
    utilisation_memory_query: str = Field(
        f"max by ({BY_GPU}) (max_over_time(DCGM_FI_DEV_FB_USED[1m]))",
        description="Query for the memory in use in MiB, one sample per GPU of a pod; empty: not read",
    )
    utilisation_exporter: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="Exporter of each node, in place of Prometheus, such as http://{node}:9400/metrics",
    )
    utilisation_metric: str = Field(
        "DCGM_FI_DEV_GPU_UTIL",
        pattern="^[a-zA-Z_:][a-zA-Z0-9_:]*$",
        description="Metric of the exporters: use of a GPU in percent, with labels namespace and pod",
    )
    utilisation_memory_metric: str = Field(
        "DCGM_FI_DEV_FB_USED",
        pattern="^([a-zA-Z_:][a-zA-Z0-9_:]*)?$",
        description="Metric of the exporters: memory in use of a GPU in MiB; empty: not read",
    )
    utilisation_busy_percent: int = Field(
        3, ge=1, le=100, description="Percentage of use from which a GPU counts as busy"
    )
    utilisation_seconds: int = Field(30, ge=1, le=3600, description="Interval of measurements of the use of GPUs")
    heads: int = Field(
        32, ge=1, le=512, description="Number of jobs at the front of each pool for which lent quota is taken back"
    )
    prices: Literal["auto", "rehearsed", "auction", "off"] = Field(
        "auto",
        description="Method of learning the worth of pods; auto: rehearsed where numba is installed, else auction",
    )
    learn_from_arrivals: int = Field(
        FROM_ARRIVALS, ge=1, le=1_000_000, description="Number of pods requested of a pool before its prices are learnt"
    )
    learning_seconds: float = Field(
        900.0, gt=0, le=86_400, description="Time after which unfinished learning is given up"
    )

    @property
    def measures(self) -> bool:
        """Whether anybody measures the use of GPUs."""
        return bool(self.utilisation_url or self.utilisation_exporter)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.utilisation_url and self.utilisation_exporter:
            raise ValueError("utilisation_url and utilisation_exporter: name one of them, not both")
        return self
