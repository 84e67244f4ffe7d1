"""
Grafana dashboards as code: `make dashboards` writes deploy/dashboards/*.json, and a test holds them to it.

Every panel goes by `service` and `shard`, the labels of the targets (deploy/prometheus.yaml), and by no metric that the
services do not export. Only a leader's word counts about pools, queues and tenants: a sum would count its standby too.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as commons
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef("prometheus", "${source}")
OURS = 'shard=~"$shard"'
WIDTH, HEIGHT = 12, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are (PromQL, legend)."""

    title: str
    means: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False


def panel(title: str, means: str, unit: str, *queries: tuple[str, str], stacked: bool = False) -> Panel:
    return Panel(title, means, unit, queries, stacked)


def quantile(share: float, metric: str, by: str, more: str = "") -> str:
    rate = f"rate({metric}_bucket{{{OURS}{more}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by ({by}, le) ({rate}))"


CLUSTER = (
    panel(
        "GPUs",
        "What the nodes have, and what runs hold of it; between the two is idle.",
        "short",
        (f"sum by (pool) (max by (shard, pool) (tessera_pool_gpus{{{OURS}}}))", "{{pool}} in all"),
        (
            (
                f"sum by (pool) (max by (shard, pool) (tessera_pool_gpus{{{OURS}}}))"
                f" - sum by (pool) (max by (shard, pool, cause) (tessera_idle_gpus{{{OURS}}}))"
            ),
            "{{pool}} held",
        ),
    ),
    panel(
        "Allocated",
        "The part of all GPUs that runs hold.",
        "percentunit",
        (
            (
                f"1 - sum by (pool) (max by (shard, pool, cause) (tessera_idle_gpus{{{OURS}}}))"
                f" / (sum by (pool) (max by (shard, pool) (tessera_pool_gpus{{{OURS}}})) > 0)"
            ),
            "{{pool}}",
        ),
    ),
    panel(
        "Idle GPUs by cause",
        "What keeps them from use, the first cause that holds; docs/operations.md explains each. `none` can be had.",
        "short",
        (f"sum by (cause) (max by (shard, pool, cause) (tessera_idle_gpus{{{OURS}}}))", "{{cause}}"),
        stacked=True,
    ),
    panel(
        "Held and not used",
        "GPUs of runs that use none of theirs now, warned or not; nothing where nobody measures.",
        "short",
        (
            f"sum by (tenant, queue) (max by (shard, pool, tenant, queue) (tessera_held_idle_gpus{{{OURS}}}))",
            "{{tenant}} in {{queue}}",
        ),
        (
            f"sum (max by (shard, pool, tenant, queue) (tessera_held_unmeasured_gpus{{{OURS}}}))",
            "not measured",
        ),
        stacked=True,
    ),
    panel(
        "Slots: pods of so many GPUs that could start now",
        "Falling for 8 while 1 stays high is fragmentation.",
        "short",
        (
            f'sum by (pool, gpus) (max by (shard, pool, gpus) (tessera_slots{{{OURS}, level="pool"}}))',
            "{{pool}}, {{gpus}} GPUs",
        ),
    ),
    panel(
        "Fragmentation: free GPUs that no slot of 8 has",
        "Of the GPUs that can be had (slots of 1), the part that does not add up to slots of 8 on one node.",
        "percentunit",
        (
            (
                f'1 - 8 * sum by (pool) (max by (shard, pool) (tessera_slots{{{OURS}, level="pool", gpus="8"}}))'
                f' / (sum by (pool) (max by (shard, pool) (tessera_slots{{{OURS}, level="pool", gpus="1"}})) > 0)'
            ),
            "{{pool}}",
        ),
    ),
    panel(
        "Devices by class",
        "What drivers publish on the nodes: all devices of each class, and of these the taken and the tainted ones.",
        "short",
        (
            (
                "sum by (device_class, state) (max by (shard, pool, device_class, state)"
                f" (tessera_class_devices{{{OURS}}}))"
            ),
            "{{device_class}} {{state}}",
        ),
    ),
    panel(
        "Queue waits",
        "From submit to the first allocation, of jobs that started.",
        "s",
        (quantile(0.5, "tessera_queue_wait_seconds", "queue"), "{{queue}} median"),
        (quantile(0.95, "tessera_queue_wait_seconds", "queue"), "{{queue}} 95 %"),
    ),
    panel(
        "How long the first in line has waited",
        "Of each queue now, whether it will start or not.",
        "s",
        (f"time() - max by (shard, queue) (tessera_queue_head_submitted_timestamp_seconds{{{OURS}}})", "{{queue}}"),
    ),
    panel(
        "Jobs in line",
        "By queue; not those on hold or in back-off.",
        "short",
        (f"max by (shard, queue) (tessera_queue_waiting_jobs{{{OURS}}})", "{{queue}}"),
        stacked=True,
    ),
    panel(
        "Why not",
        "Every no, by its reason, as `tessera explain` says it.",
        "ops",
        (f"sum by (reason) (rate(tessera_reasons_total{{{OURS}}}[$__rate_interval]))", "{{reason}}"),
    ),
)

SHARD = (
    panel(
        "Ledger rate",
        "Messages that the committer appends; each is a batch of decisions.",
        "ops",
        (f'max by (shard) (rate(tessera_ledger_n{{{OURS}, service="scheduler"}}[$__rate_interval]))', "{{shard}}"),
    ),
    panel(
        "Lag behind the newest record",
        "How many records each process stands behind the one that is furthest; scrapes are not at one moment.",
        "short",
        (
            f"max by (shard) (tessera_ledger_n{{{OURS}}}) - on (shard) group_right () (tessera_ledger_n{{{OURS}}} > 0)",
            "{{service}} {{instance}}",
        ),
    ),
    panel(
        "Time per step of a cycle, 99 %",
        "`append` is NATS's disk.",
        "s",
        (quantile(0.99, "tessera_cycle_step_seconds", "step"), "{{step}}"),
    ),
    panel(
        "Time spent by step",
        "Seconds per second; towards 1 in all, the committer is at its limit.",
        "percentunit",
        (f"sum by (step) (rate(tessera_cycle_step_seconds_sum{{{OURS}}}[$__rate_interval]))", "{{step}}"),
        stacked=True,
    ),
    panel(
        "Who leads",
        "One each of scheduler, queueing and projection.",
        "short",
        (
            f'sum by (shard, service) (tessera_leading{{{OURS}, service=~"scheduler|queueing|projection"}})',
            "{{service}} of {{shard}}",
        ),
    ),
    panel(
        "Facts that wait",
        "At the scheduler; growing, they come faster than they are committed.",
        "short",
        (f'max by (shard) (tessera_queue_depth{{{OURS}, service="scheduler"}})', "{{shard}}"),
    ),
    panel(
        "Lost compare-and-swaps",
        "One at a change of leaders; more are two who write at once.",
        "short",
        (f"sum by (shard, service) (increase(tessera_conflicts_total{{{OURS}}}[$__rate_interval]))", "{{service}}"),
    ),
    panel(
        "How full the stores are",
        "From 90 % on a ledger refuses new jobs; a full Redis takes no more views. Only what has a bound is shown.",
        "percentunit",
        (f"max by (shard) (tessera_ledger_bytes{{{OURS}}} / (tessera_ledger_bytes_max{{{OURS}}} > 0))", "ledger"),
        (f"max by (shard) (tessera_redis_bytes{{{OURS}}} / (tessera_redis_bytes_max{{{OURS}}} > 0))", "Redis"),
    ),
)

SERVICE = (
    panel(
        "Rate: messages handled",
        "What each service hears of the ledger.",
        "ops",
        (
            f"sum by (service) (rate(tessera_event_hop_seconds_count{{{OURS}}}[$__rate_interval]))",
            "{{service}}",
        ),
    ),
    panel(
        "Rate: requests to the gateway",
        "By route and status.",
        "reqps",
        (
            f"sum by (route, status) (rate(tessera_gateway_requests_total{{{OURS}}}[$__rate_interval]))",
            "{{route}} {{status}}",
        ),
    ),
    panel(
        "Errors: dead letters, redeliveries, connections turned away",
        "Input that can never be handled, commands handed out again, and what the gateway's limits kept out.",
        "short",
        (f"sum by (service) (increase(tessera_dlq_total{{{OURS}}}[$__rate_interval]))", "{{service}} dead letters"),
        (f"sum (increase(tessera_redeliveries_total{{{OURS}}}[$__rate_interval]))", "redeliveries"),
        (
            f"sum by (limit) (increase(tessera_gateway_connections_turned_away_total{{{OURS}}}[$__rate_interval]))",
            "turned away: {{limit}}",
        ),
        (f"sum (increase(tessera_gateway_slow_readers_total{{{OURS}}}[$__rate_interval]))", "slow readers dropped"),
    ),
    panel(
        "Checks that fail",
        "Of /readyz; its body says why.",
        "short",
        (f"count by (service, check) (tessera_ready{{{OURS}}} == 0)", "{{service}}: {{check}}"),
        stacked=True,
    ),
    panel(
        "Duration: from a message's storing to its handling",
        "Median and 99 %.",
        "s",
        (quantile(0.5, "tessera_event_hop_seconds", "service"), "{{service}} median"),
        (quantile(0.99, "tessera_event_hop_seconds", "service"), "{{service}} 99 %"),
    ),
    panel(
        "Gateway: open connections and event streams",
        "Event streams are among the connections.",
        "short",
        (f"sum by (instance) (tessera_gateway_connections{{{OURS}}})", "{{instance}} connections"),
        (f"sum by (instance) (tessera_gateway_event_streams{{{OURS}}})", "{{instance}} event streams"),
    ),
    panel(
        "CPU",
        "Cores per process.",
        "short",
        (
            f'rate(process_cpu_seconds_total{{{OURS}, job="tessera"}}[$__rate_interval])',
            "{{service}} {{instance}}",
        ),
    ),
    panel(
        "Memory",
        "Resident, per process.",
        "bytes",
        (f'process_resident_memory_bytes{{{OURS}, job="tessera"}}', "{{service}} {{instance}}"),
    ),
)

_HELD = f"sum by (tenant) (max by (shard, tenant, queue) (tessera_tenant_held_gpus{{{OURS}}}))"
_IN_QUEUE = f"max by (shard, tenant, queue) (tessera_tenant_held_gpus{{{OURS}}})"
_COUNTED = f"max by (shard, tenant, limit) (tessera_tenant_counted{{{OURS}}})"
TENANT = (
    panel("GPUs held", "By tenant, over all queues.", "short", (_HELD, "{{tenant}}"), stacked=True),
    panel(
        "Quota of queues: held of nominal",
        "Above 100 % it borrows. Queues without a nominal quota of GPUs are left out.",
        "percentunit",
        (
            f"sum by (shard, queue) ({_IN_QUEUE}) / (max by (shard, queue) (tessera_queue_nominal_gpus{{{OURS}}}) > 0)",
            "{{queue}}",
        ),
    ),
    panel(
        "Share of a queue: held",
        "Of what all tenants hold in it.",
        "percentunit",
        (
            f"{_IN_QUEUE} / on (shard, queue) group_left () sum by (shard, queue) ({_IN_QUEUE} > 0)",
            "{{tenant}} in {{queue}}",
        ),
    ),
    panel(
        "Share by weight",
        "What a tenant's weight is of all tenants'; whoever asks for nothing leaves its part to the others.",
        "percentunit",
        (
            (
                f"max by (shard, tenant) (tessera_tenant_weight{{{OURS}}})"
                f" / on (shard) group_left () sum by (shard) (max by (shard, tenant) (tessera_tenant_weight{{{OURS}}}))"
            ),
            "{{tenant}}",
        ),
    ),
    panel(
        "GPUs asked for, and the limit",
        "By live jobs, waiting ones among them; only tenants with a limit have the second line.",
        "short",
        (f"max by (shard, tenant) (tessera_tenant_asked_gpus{{{OURS}}})", "{{tenant}} asks"),
        (f"max by (shard, tenant) (tessera_tenant_gpus_max{{{OURS}}})", "{{tenant}} limit"),
    ),
    panel(
        "Live jobs",
        "That have not ended.",
        "short",
        (f"max by (shard, tenant) (tessera_tenant_jobs{{{OURS}}})", "{{tenant}}"),
        stacked=True,
    ),
    panel(
        "Limits of jobs, pods, services and sessions: used",
        "What has not ended, of the most that may be; at 100 % one more is refused. Unset limits have no line.",
        "percentunit",
        (
            f"{_COUNTED} / (max by (shard, tenant, limit) (tessera_tenant_counted_max{{{OURS}}}) > 0)",
            "{{tenant}} {{limit}}",
        ),
    ),
)

PAGES = {"cluster": CLUSTER, "shard": SHARD, "service": SERVICE, "tenant": TENANT}


def drawn(wanted: Panel) -> timeseries.Panel:
    """One panel over time, with its queries lettered as Grafana letters them."""
    made = (
        timeseries.Panel()
        .title(wanted.title)
        .description(wanted.means)
        .unit(wanted.unit)
        .datasource(SOURCE)
        .span(WIDTH)
        .height(HEIGHT)
        .min(0)
        .fill_opacity(30 if wanted.stacked else 0)
        .legend(common.VizLegendOptions().placement(commons.LegendPlacement.BOTTOM).show_legend(True))
    )
    if wanted.stacked:
        made = made.stacking(common.StackingConfig().mode(commons.StackingMode.NORMAL))
    for number, (expr, legend) in enumerate(wanted.queries):
        made = made.with_target(prometheus.Dataquery().expr(expr).legend_format(legend).ref_id("ABCDEFGH"[number]))
    return made


def page(name: str, panels: Iterable[Panel]) -> str:
    """A dashboard's JSON; where Prometheus is and which shards are shown is chosen at the top."""
    shards = dashboard.QueryVariable("shard").label("Shard").query("label_values(tessera_ready, shard)")
    made = (
        dashboard.Dashboard(f"Tessera: {name}")
        .uid(f"tessera-{name}")
        .tags(["tessera"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            shards.datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".+")
        )
    )
    for wanted in panels:
        made = made.with_panel(drawn(wanted))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, panels in PAGES.items():
        (FOLDER / f"{name}.json").write_text(page(name, panels))
    print(f"{len(PAGES)} dashboards in {FOLDER.name}/", file=sys.stderr)


if __name__ == "__main__":
    main()
