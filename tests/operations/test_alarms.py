"""
Each alarm rings for a planted fault: a real Prometheus reads the real services, by the rules that operators load.

The one that asks for the API server's metrics rings in tests/kubernetes/test_slow_binds.py.
"""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml

from tessera.binder.pods.stopping import gone_is_fine
from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.client.outcomes import Submitted
from tessera.kernel.clock import SystemClock
from tessera.kernel.ports import Outgoing
from tessera.kernel.provisioning.streams import Bounds, ensure_streams
from tessera_local.free_port import LOOPBACK
from tessera_local.platform import EVENTS_BYTES_MAX, Platform
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.cluster.labels import (
    LEDGER_LABEL,
    MANAGED_BY_LABEL,
    MIG_CONFIG_LABEL,
    MIG_CONFIG_STATE_LABEL,
    RUN_LABEL,
    SCHEDULER_NAME,
    SHARD_LABEL,
    SIMULATE_PREFIX,
)
from tessera_schemas.cluster.pools import MigChanges, MigConfig, Pool
from tessera_schemas.commands import DrainNode, EndReservation, ReportHealth, ReserveNodes
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota
from tessera_schemas.facts import FactMessage, RunEnded
from tessera_schemas.job import JobProgress, Template
from tessera_schemas.shard.bookings import BookedWindow
from tessera_schemas.work.arrays import ServiceSize
from tests.chaos.skewed import write_skew
from tests.e2e.live import TENANTS, Live, append, configuration, eventually, job
from tests.e2e.node_faults import operate
from tests.e2e.prometheus import RULES, Prometheus, watching
from tests.e2e.wire import wire_to

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: `make prometheus` installs it"),
]
POOLS = ("default", "east", "north", "west")
NODES = """
- {name: gpu, count: 4, cpu: '96', memory: 768Gi, gpus: 8, gpu_model: H100}
- {name: east, count: 1, cpu: '96', memory: 768Gi, gpus: 8, gpu_model: H100, pool: east}
- {name: north, count: 1, cpu: '96', memory: 768Gi, gpus: 8, gpu_model: H100, pool: north}
- {name: west, count: 1, cpu: '96', memory: 768Gi, gpus: 8, gpu_model: H100, pool: west}
- name: cut
  cpu: '96'
  memory: 768Gi
  gpu_memory: 80Gi
  device_profile: mig
  mig: {3g.40gb: 2}
  pool: cut
  labels: {nvidia.com/mig.config: all-3g.40gb, nvidia.com/mig.config.state: success}
"""
SMALL, LARGE = "all-1g.10gb", "all-3g.40gb"
NEVER = 600.0
FOR_EVER = {"tessera.io/simulate-seconds": str(NEVER)}
LEDGER_BYTES_MAX = 2**31
FACTS_THAT_WAIT = 4_000  # a thousand find room in what is left, compressed
LONG_LEASE = {"TESSERA_LEASE_SECONDS": "60"}  # longer than the other replica's: it does not see that it was deposed
ON_KUBERNETES = {"TesseraSlowBinds"}


def four_pools() -> ConfigBody:
    """
    A queue for each pool, silent nodes given up soon and turned off by nobody, and runs that use no GPU warned.

    One pool more, `cut`, whose node may be cut anew.
    """
    quotas = (Quota(resource="gpu_milli", nominal=32_000),)
    queues = tuple(Queue(name=pool, pool=pool, quotas=quotas) for pool in (*POOLS, "cut"))
    configs = (MigConfig(name=LARGE, gives={"3g.40gb": 2}), MigConfig(name=SMALL, gives={"1g.10gb": 7}))
    cut = Pool(name="cut", device_profile="mig", mig_changes=MigChanges(configs=configs, change_seconds=1))
    nowhere = Fencing(url="https://127.0.0.1:1/", after_seconds=0, timeout_seconds=1)
    policy = Policy(node_lost_seconds=2, idle="warn")
    return configuration(queues=queues, pools=(cut,), policy=policy, health=HealthPolicy(), fencing=nowhere)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    home = tmp_path_factory.mktemp("up")
    (home / "nodes.yaml").write_text(NODES)
    async with (
        Platform(home / "up", nodes=home / "nodes.yaml", tenants=TENANTS, ledger_bytes_max=LEDGER_BYTES_MAX) as up,
        Live.on(up, four_pools()) as live,
    ):
        await (await live.redis_admin()).aclose()  # its user comes with a restart of Redis
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(live: Live, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    async with watching(live, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


async def test_nothing_rings_while_all_is_well_and_every_metric_is_there(live: Live, prometheus: Prometheus) -> None:
    done = await live.submit(job("well"))
    await live.until_ended(done.job_id)
    for expr in ("tessera_ledger_bytes > 0", "tessera_redis_bytes > 0", "tessera_pool_gpus > 0", "tessera_tenant_jobs"):
        await prometheus.gives(expr)
    await prometheus.until_nothing_rings()


async def test_admission_dies_with_commands_in_hand(live: Live) -> None:
    """They are handed out again after 30 seconds, which the last test but one waits for."""
    live.platform.pause("admission")
    await asyncio.gather(*(live.submit(job(f"again-{number}"), answer_seconds=0.1) for number in range(30)))
    await live.kill("admission")
    await live.until_ready("admission")


async def test_nobody_leads_while_queueing_is_down(live: Live, prometheus: Prometheus) -> None:
    async with live.down("queueing"):
        await prometheus.until_rings("TesseraServiceDown", "queueing")
        await prometheus.until_rings("TesseraNobodyLeads", "queueing")
    await prometheus.until_silent("TesseraNobodyLeads", "queueing")


async def test_projection_is_not_ready_while_redis_is_down(live: Live, prometheus: Prometheus) -> None:
    async with live.down("redis"):
        await live.submit(job("unseen"), answer_seconds=0.1)
        await prometheus.until_rings("TesseraNotReady", "projection")
    await prometheus.until_silent("TesseraNotReady", "projection")


async def test_a_message_that_is_no_fact_is_a_dead_letter(live: Live, prometheus: Prometheus) -> None:
    await publish_facts(live, [b"no fact"])
    await prometheus.until_rings("TesseraDeadLetters", "scheduler")


async def test_a_service_is_killed_three_times(live: Live, prometheus: Prometheus) -> None:
    for _ in range(3):
        (seen,) = await prometheus.query('process_start_time_seconds{service="preemption"}')
        await live.kill("preemption")
        await prometheus.gives(f'process_start_time_seconds{{service="preemption"}} > {seen["value"][1]}')
    await prometheus.until_rings("TesseraRestarts", "preemption")
    await live.until_ready("preemption")


async def test_a_service_stands_still_while_messages_come(live: Live, prometheus: Prometheus) -> None:
    live.platform.pause("preemption")
    try:
        done = [await live.submit(job("unheard")) for _ in range(3)]
        await live.until_ended(*(each.job_id for each in done))
        await asyncio.sleep(6)  # the alarm's five seconds
    finally:
        live.platform.resume("preemption")
    await prometheus.until_rings("TesseraLate", "preemption")


async def test_a_bound_pod_that_the_ledger_does_not_explain(live: Live, prometheus: Prometheus) -> None:
    labels = {RUN_LABEL: "nobody-knows-it", MANAGED_BY_LABEL: SCHEDULER_NAME, SHARD_LABEL: "main"}
    pod = {
        "metadata": {"name": "stray", "namespace": "lab", "labels": labels, "annotations": FOR_EVER},
        "spec": {"schedulerName": SCHEDULER_NAME, "containers": [{"name": "stray", "image": "stray"}]},
    }
    cluster = live.cluster()
    try:
        async with live.down("binder"):  # one that saw the pod before it was bound would delete it as not needed
            uid = (await cluster.create_pod("lab", pod))["metadata"]["uid"]
            await cluster.bind_pod("lab", "stray", uid, "gpu-0", {})
        await prometheus.until_rings("TesseraOrphanPod")
        await gone_is_fine(cluster.delete_pod("lab", "stray", uid, 0))  # the binder may have been sooner
    finally:
        await cluster.close()


async def test_pods_of_another_installation_run_on_the_shards_nodes(live: Live, prometheus: Prometheus) -> None:
    labels = {RUN_LABEL: "theirs-1", MANAGED_BY_LABEL: SCHEDULER_NAME, SHARD_LABEL: "main", LEDGER_LABEL: "another"}
    pod = {
        "metadata": {"name": "theirs", "namespace": "lab", "labels": labels, "annotations": FOR_EVER},
        "spec": {"schedulerName": SCHEDULER_NAME, "containers": [{"name": "theirs", "image": "theirs"}]},
    }
    cluster = live.cluster()
    try:
        uid = (await cluster.create_pod("lab", pod))["metadata"]["uid"]
        await cluster.bind_pod("lab", "theirs", uid, "gpu-0", {})
        await prometheus.until_rings("TesseraAnotherInstallation")
        await gone_is_fine(cluster.delete_pod("lab", "theirs", uid, 0))
        await prometheus.until_silent("TesseraAnotherInstallation")
    finally:
        await cluster.close()


async def test_a_node_refuses_pods(live: Live, prometheus: Prometheus) -> None:
    for node in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
        await order(live, fault="node_refusing", node=node)
    done = await live.submit(job(gpus=8, seconds=0.1))
    await prometheus.until_rings("TesseraNodeRefusesPods")
    for node in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
        await order(live, fault="node_healed", node=node)
    await live.until_ended(done.job_id)


async def test_nodes_are_sick_and_more_of_them_than_may_be_out(live: Live, prometheus: Prometheus) -> None:
    lost = (Ailment(cause=HealthCause.LINK_ERRORS, evidence="CRC errors on link 3"),)
    for node in ("gpu-0", "gpu-1"):
        report = ReportHealth(kind="report_health", v=1, node=node, source="agent", ailments=lost)
        await operate(live, report)
    await prometheus.until_rings("TesseraNodeSick")
    await prometheus.until_rings("TesseraSickNodesHeldBack")
    for node in ("gpu-0", "gpu-1"):
        await operate(live, ReportHealth(kind="report_health", v=1, node=node, source="agent"))
    await prometheus.until_silent("TesseraNodeSick")


async def test_a_test_of_suspected_nodes_fails_wherever_it_is_tried(live: Live, prometheus: Prometheus) -> None:
    known = live.state.config
    fails = {f"{SIMULATE_PREFIX}seconds": "0.1", f"{SIMULATE_PREFIX}exit-code": "1"}
    test = HealthTest(tenant="lab", queue="default", template=Template(image="test:1", annotations=fails))
    policy = HealthPolicy(out_percent=50, reputation=ReputationPolicy(), test=test)
    await live.configure(known.body.model_copy(update={"health": policy}), known.version)
    suspected = (Ailment(cause=HealthCause.SUSPECTED, evidence="two jobs failed there"),)
    for node in ("gpu-0", "gpu-1"):
        report = ReportHealth(kind="report_health", v=1, node=node, source="agent", ailments=suspected)
        await operate(live, report)
    await prometheus.until_rings("TesseraNodeTestBroken")
    await live.configure(known.body, known.version + 1)
    await prometheus.until_silent("TesseraNodeTestBroken")
    for node in ("gpu-0", "gpu-1"):
        await operate(live, ReportHealth(kind="report_health", v=1, node=node, source="agent"))


async def test_a_mig_manager_takes_too_long_and_then_fails(live: Live, prometheus: Prometheus) -> None:
    spec = job(gpus=0, queue="cut")
    asked = spec.roles[0].resources.model_copy(update={"mig_profile": "1g.10gb"})
    waits = await live.submit(
        spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"resources": asked}),)})
    )
    await prometheus.until_rings("TesseraMigChangeLate")
    await answer_change(live, SMALL, "failed")
    await answer_change(live, LARGE, "success")  # taken back
    await prometheus.until_rings("TesseraMigChangeFailed")
    await prometheus.until_silent("TesseraMigChangeLate")
    await live.clients["lab"].cancel(waits.job_id)
    await live.until_ended(waits.job_id)


async def test_a_run_loses_its_node_and_then_most_nodes_are_silent(live: Live, prometheus: Prometheus) -> None:
    done = await live.submit(job(seconds=NEVER))
    await live.until_phase(done.job_id, "running")
    (node,) = nodes_of(live, done)
    await order(live, fault="node_reachable", node=node, reachable=False)
    await prometheus.until_rings("TesseraRunLost")
    await prometheus.until_rings("TesseraNodeNotFenced")
    await prometheus.until_rings("TesseraRunsWaitForNode")
    others = [name for name in ("gpu-0", "gpu-1", "gpu-2", "gpu-3", "east-0", "north-0", "west-0") if name != node]
    for name in others:
        await order(live, fault="node_reachable", node=name, reachable=False)
    await prometheus.until_rings("TesseraOutage")
    for name in (node, *others):
        await order(live, fault="node_reachable", node=name, reachable=True)
    await prometheus.until_silent("TesseraOutage")
    await prometheus.until_silent("TesseraRunsWaitForNode")
    await prometheus.until_silent("TesseraNodeNotFenced")
    await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)


async def test_two_nodes_seem_lost_at_once_and_a_third_has_no_devices(live: Live, prometheus: Prometheus) -> None:
    done = [await live.submit(job(seconds=NEVER, gpus=8)) for _ in range(3)]
    for each in done:
        await live.until_phase(each.job_id, "running")
    nodes = nodes_of(live, *done)
    await order(live, fault="device_plugins", node=nodes[2], there=False)
    await prometheus.until_rings("TesseraDevicesAway")
    for node in nodes[:2]:
        await order(live, fault="node_reachable", node=node, reachable=False)
    await prometheus.until_rings("TesseraStopsHeldBack")
    for node in nodes[:2]:
        await order(live, fault="node_reachable", node=node, reachable=True)
    await order(live, fault="device_plugins", node=nodes[2], there=True)
    await prometheus.until_silent("TesseraStopsHeldBack")
    await prometheus.until_silent("TesseraDevicesAway")
    attempts = sorted(live.state.jobs.get(each.job_id).attempt for each in done)  # type: ignore[union-attr]
    assert attempts[:2] == [1, 1]  # one of the two silent nodes was given up
    for each in done:
        await live.clients["lab"].cancel(each.job_id)
        await live.until_ended(each.job_id)


async def test_a_program_hangs_whose_job_asks_for_a_warning(live: Live, prometheus: Prometheus) -> None:
    spec = job(seconds=NEVER)
    (role,) = spec.roles
    hangs = {f"{SIMULATE_PREFIX}step-seconds": "0.5", f"{SIMULATE_PREFIX}hang-step": "3"}
    template = role.template.model_copy(update={"annotations": role.template.annotations | hangs})
    roles = (role.model_copy(update={"template": template}),)
    done = await live.submit(spec.model_copy(update={"roles": roles, "progress": JobProgress(hang_seconds=5)}))
    await prometheus.until_rings("TesseraRunsStalled")
    await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)
    await prometheus.until_silent("TesseraRunsStalled")


async def test_no_use_is_measured_no_prices_are_learnt_and_redis_fills(live: Live, prometheus: Prometheus) -> None:
    """A reclamation that asks where nobody answers, and may learn for ten milliseconds; one try for each pool."""
    settings = {
        "TESSERA_UTILISATION_URL": f"http://{LOOPBACK}:9",
        "TESSERA_UTILISATION_SECONDS": "1",
        "TESSERA_PRICES": "auction",
        "TESSERA_LEARN_FROM_ARRIVALS": "1",
        "TESSERA_LEARNING_SECONDS": "0.01",
    }
    async with redis_full_to(live, 0.85), live.down("reclamation"), live.another("reclamation", **settings) as other:
        await other.until_ready()
        await prometheus.gives('tessera_prices_not_learnt_total{instance="reclamation-more-0"}')
        for pool in POOLS[1:]:
            await live.submit(job(queue=pool))
        await prometheus.until_rings("TesseraUseNotMeasured")
        await prometheus.until_rings("TesseraPricesNotLearnt")
        await prometheus.until_rings("TesseraRedisFull")
    await live.until_ready("reclamation")


async def test_what_dcgm_counts_is_not_read_while_the_use_of_gpus_is(live: Live, prometheus: Prometheus) -> None:
    """A query of health that Prometheus refuses; that of use it answers, so that it is no server that is away."""
    settings = {
        "TESSERA_UTILISATION_URL": prometheus.url,
        "TESSERA_UTILISATION_SECONDS": "1",
        "TESSERA_HEALTH_QUERY": "DCGM_FI_DEV_XID_ERRORS{",
    }
    async with live.down("reclamation"), live.another("reclamation", **settings) as other:
        await other.until_ready()
        await prometheus.until_rings("TesseraHealthNotRead")
        assert not await prometheus.query(
            'tessera_log_events_total{event="utilisation_not_read", instance="reclamation-more-0"} > 0'
        )
    await live.until_ready("reclamation")


async def test_a_tenants_stored_logs_fill_its_share(live: Live, prometheus: Prometheus) -> None:
    settings = {
        "TESSERA_API_PORT": "0",
        "TESSERA_LOGS_STORE": str(live.home / "few"),
        "TESSERA_LOGS_BYTES_MAX": str(2**20),
    }
    async with live.down("gateway"), live.another("gateway", **settings) as other:
        await other.until_ready()
        pods = {"replicas": 2, "ttl_seconds_after_finished": 300}  # 120 logs, each 4.5 KiB beside its text
        done = [await live.submit(job(f"prints-{number}", **pods)) for number in range(60)]
        await live.until_ended(*(each.job_id for each in done))
        await prometheus.until_rings("TesseraStoredLogsFull")


@asynccontextmanager
async def submitting(live: Live, name: str) -> AsyncIterator[None]:
    """A short job comes ten times a second while inside."""

    async def submit() -> None:
        while True:
            await live.submit(job(name))
            await asyncio.sleep(0.1)

    task = asyncio.create_task(submit())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_two_replicas_lead_because_one_has_a_longer_lease(live: Live, prometheus: Prometheus) -> None:
    async with live.another("projection", **LONG_LEASE) as other:
        await other.until_ready()
        await live.platform.stop("projection")  # it lets its lease go
        await prometheus.gives('tessera_leading{instance="projection-more-0"} == 1')
        await live.platform.start("projection")
        await prometheus.gives('tessera_leading{instance="projection"} == 1')
        # Both publish what comes now, and only one of them can: they meet again and again while anything comes.
        async with submitting(live, "twice"):
            await prometheus.until_rings("TesseraTwoLead", "projection")
            await prometheus.until_rings("TesseraConflicts", "projection")


async def test_a_handler_holds_the_loop_of_its_process(live: Live, prometheus: Prometheus) -> None:
    command = [sys.executable, "-m", "tests.chaos.held", "queueing", "main"]
    async with live.another("queueing", command) as other:
        await other.until_ready()
        counted = 'tessera_log_events_total{event="loop_blocked", service="queueing", instance=~".*more.*"}'
        await prometheus.gives(counted)
        # On a busy machine it may have stood still already, as it began.
        (before,) = await prometheus.query(counted)
        other.process.send_signal(signal.SIGUSR1)
        await prometheus.gives(f"{counted} > {before['value'][1]}")
        await prometheus.until_rings("TesseraLoopBlocked", "queueing")


async def test_the_clock_of_a_machine_is_wrong(live: Live, prometheus: Prometheus, tmp_path: Path) -> None:
    clock = tmp_path / "queueing"
    write_skew(clock, 600_000)
    command = [sys.executable, "-m", "tests.chaos.skewed", str(clock), "queueing", "main"]
    async with live.another("queueing", command) as other:
        await other.until_ready()
        for number in range(5):
            await live.until_ended((await live.submit(job(f"skewed-{number}"))).job_id)
        await prometheus.until_rings("TesseraClockSkew", "queueing")


async def test_a_follower_hears_no_more_of_the_ledger(live: Live, prometheus: Prometheus) -> None:
    async with (
        wire_to(live.platform.nats.url) as wire,
        live.another("preemption", TESSERA_NATS_URL=wire.url) as cut_off,
    ):
        await cut_off.until_ready()
        await prometheus.gives('tessera_ledger_n{instance="preemption-more-0"} > 0')
        wire.cut()
        await live.until_ended((await live.submit(job("passed-by"))).job_id)
        await prometheus.until_rings("TesseraFollowerBehind", "preemption")
        wire.mend()


async def test_a_full_ledger_and_facts_that_wait_for_room(live: Live, prometheus: Prometheus) -> None:
    await live.until_idle()
    held = (await live.bus.usage(subjects.stream("LEDGER", "main"))).bytes
    await bound_ledger(live, held + 2**15)
    await prometheus.until_rings("TesseraLedgerFull")
    unknown = [RunEnded(kind="run_ended", run_id=f"{job_id('main', 'lab', str(n))}-1") for n in range(FACTS_THAT_WAIT)]
    await publish_facts(live, [FactMessage(v=1, fact=fact).model_dump_json().encode() for fact in unknown])
    await prometheus.until_rings("TesseraFactsWait")
    await bound_ledger(live, LEDGER_BYTES_MAX)
    await prometheus.until_silent("TesseraLedgerFull")
    await live.until_ended((await live.submit(job("goes-on"))).job_id)


async def test_a_service_runs_fewer_replicas_than_are_guaranteed(live: Live, prometheus: Prometheus) -> None:
    size = ServiceSize(min_replicas=5, max_replicas=5, replicas=5)  # one more than there is room for
    done = await live.submit(job("serves", gpus=8, seconds=NEVER, time_limit_seconds=None, service=size))
    await prometheus.until_rings("TesseraServiceBelowMinimum")
    await live.clients["lab"].cancel(done.job_id, now=True)
    await live.until_ended(done.job_id)


async def test_a_reservation_lacks_a_node(live: Live, prometheus: Prometheus) -> None:
    begin = SystemClock().now_ms() + 3_600_000
    window = BookedWindow(start_ts=begin, end_ts=begin + 3_600_000)
    kept = {"name": "demo", "pool": "west", "nodes": ("west-0",), "windows": (window,), "who": ("lab",)}
    await operate(live, ReserveNodes.model_validate({"kind": "reserve_nodes", "v": 1, **kept}))
    await operate(live, DrainNode(kind="drain_node", v=1, node="west-0"))
    await prometheus.until_rings("TesseraReservationUnserved")
    await operate(live, DrainNode(kind="drain_node", v=1, node="west-0", undo=True))
    await operate(live, EndReservation(kind="end_reservation", v=1, name="demo"))
    await prometheus.until_silent("TesseraReservationUnserved")


async def test_commands_are_handed_out_again(prometheus: Prometheus) -> None:
    await prometheus.until_rings("TesseraRedeliveries", "admission")


async def test_a_ledger_that_contradicts_itself_halts_and_every_alarm_has_rung(
    live: Live, prometheus: Prometheus
) -> None:
    await live.until_idle()
    stored = list(live.stored)
    await live.stop_looking()
    forged = json.loads(stored[-1]) | {"n": len(stored) + 1, "tx": "forged-1", "prev": "f" * 64, "records": []}
    await append(live, [json.dumps(forged).encode()])
    await prometheus.until_rings("TesseraHalted", "queueing")
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {alarm for alarm, _ in prometheus.rang} == set(rules) - ON_KUBERNETES


async def publish_facts(live: Live, facts: list[bytes]) -> None:
    """Say this with the binder's identity."""
    place = find(live.home)
    async with open_bus(place, place.identity("binder")) as bus:
        subject = subjects.fact("main", "binder", "run-ended")
        for first in range(0, len(facts), 256):
            await bus.publish_all([Outgoing(subject, data) for data in facts[first : first + 256]])


async def order(live: Live, **fault: object) -> None:
    """Do this to the simulated cluster."""
    token = live.platform.credentials.read(subjects.OPERATOR).cluster_token
    headers, url = {"Authorization": f"Bearer {token}"}, f"{live.platform.cluster_url}/admin/faults"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=fault) as answer:
        assert answer.status == 201, await answer.text()


async def answer_change(live: Live, config: str, state: str) -> None:
    """
    Label the node as the binder and the mig-manager do, once it is to be cut to `config`.

    In the simulated cluster the binder may not change nodes, as in a chart without `migChanges`.
    """
    await eventually(
        lambda: (change := live.state.mig_changes.get("cut")) is not None and change.config == config,
        f"the node is to be cut to {config}",
    )
    cluster = live.cluster()
    try:
        nodes, _version = await cluster.list("nodes")
        (meta,) = [node["metadata"] for node in nodes if node["metadata"]["name"] == "cut"]
        labels = {MIG_CONFIG_LABEL: config, MIG_CONFIG_STATE_LABEL: state}
        await cluster.label_node("cut", meta["resourceVersion"], labels)
    finally:
        await cluster.close()


def nodes_of(live: Live, *sent: Submitted) -> list[str]:
    """Where these jobs run; runs of other jobs that still stop count for nothing."""
    jobs = {each.job_id for each in sent}
    return sorted(run.placements[0].node for run in live.state.runs.values() if run.job_id in jobs)


async def bound_ledger(live: Live, size: int) -> None:
    """As `tessera init --mend` does it."""
    bounds = Bounds(ledger_bytes_max=size, events_bytes_max=EVENTS_BYTES_MAX)
    await live.platform._as("administrator", "main", lambda admin: ensure_streams(admin, "main", bounds, mend=True))


@asynccontextmanager
async def redis_full_to(live: Live, part: float) -> AsyncIterator[None]:
    """Redis with so little memory that it is full to this part, meanwhile, whatever it comes to use."""
    admin = await live.redis_admin()

    async def fill() -> None:
        # Again and again: buffers of clients that were large for a moment would leave it emptier than that.
        while True:
            held = (await admin.info("memory"))["used_memory"]
            await admin.config_set("maxmemory", int(held / part))
            await asyncio.sleep(0.5)

    filling = asyncio.create_task(fill())
    try:
        yield
        assert not filling.done(), filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        await admin.config_set("maxmemory", 0)
        await admin.aclose()
