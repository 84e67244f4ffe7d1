"""Settings of reclamation."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tessera.kernel.process.settings import ServiceSettings
from tessera.reclamation.health.counters import METRICS as HEALTH_METRICS
from tessera.reclamation.prices.decide import FROM_ARRIVALS
from tessera_schemas.cluster.health import HealthCause

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
    utilisation_seconds: int = Field(
        30,
        ge=1,
        le=3600,
        description="Interval of measurements of the use of GPUs, and of looks at the health of nodes",
    )
    health_query: str = Field(
        f'{{__name__=~"{"|".join(HEALTH_METRICS)}"}}',
        min_length=1,
        description="Query of Prometheus for what DCGM counts of the health of GPUs: metrics by their names, with a "
        "label that names the node",
    )
    health_conditions: dict[str, HealthCause] = Field(
        default_factory=dict,
        description="Further conditions of nodes that are bad news, and their cause, as JSON; a name with `=False` at "
        'its end is bad news while the condition is False: {"RackPower=False": "node_condition"}',
    )
    health_looks: int = Field(
        3, ge=1, le=100, description="Number of looks that have to see a fault which may pass before it is told"
    )
    health_gone_seconds: int = Field(
        300, ge=0, le=86_400, description="Time without a sign of a fault after which it is over"
    )
    heads: int = Field(
        32, ge=1, le=512, description="Number of jobs at the front of each pool for which lent quota is taken back"
    )
    fencing_secret: Path | None = Field(
        None,
        description="File with the secret that signs calls of the fencing webhook; a second line: the one before",
    )
    fencing_allow_http: bool = Field(
        False, description="Permit an http:// URL of the fencing webhook, whose answer anybody on the way can forge"
    )
    fencing_call_seconds: float = Field(10.0, gt=0, le=60, description="Time for the fencing webhook to answer a call")
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
