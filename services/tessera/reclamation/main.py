"""Wiring of reclamation: fold the ledger, watch pods and nodes, report what is absent, lost or idle."""

import asyncio
from functools import partial

from tessera.domain.state import State
from tessera.engine.preemption.plans import proposing
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.looks import Looks
from tessera.kernel.kubernetes.node_troubles import NodeTroubles
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera.kernel.ledger.loop import BooksReader, open_books
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.process.leases import Members
from tessera.kernel.process.proposing import Proposals
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness, keep_looking
from tessera.kernel.tasks.task_group import run_loops
from tessera.reclamation.absence.handlers import Absences, GonePods, only_what_is_judged
from tessera.reclamation.fencing.handlers import Fences
from tessera.reclamation.fencing.webhook import PowerSwitch, PowerWebhook
from tessera.reclamation.health.handlers import HealthLooks
from tessera.reclamation.health.sources import QueriedCounters, ScrapedCounters
from tessera.reclamation.idle_runs.exporters import Exporters, Prometheus
from tessera.reclamation.idle_runs.handlers import Idleness, Utilisation
from tessera.reclamation.lost_runs.handlers import LostRuns
from tessera.reclamation.mig_changes import MigProposals
from tessera.reclamation.node_tests import NodeTestProposals
from tessera.reclamation.prices.handlers import Learn, Prices
from tessera.reclamation.prices.learning import learn_in_subprocess
from tessera.reclamation.progress.handlers import ProgressLooks
from tessera.reclamation.reclaim.decide import reclamation_heads, reclamation_plan
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import NAMES_US, USERS_PODS, pods_of_shard

PROPOSING = (MigProposals, NodeTestProposals)
LINGER_SECONDS = 0.02  # how much later it hears what to look for while the ledger is busy


async def serve(
    ports: Ports,
    settings: ReclamationSettings,
    stop: asyncio.Event,
    utilisation: Utilisation | None = None,
    learn: Learn = learn_in_subprocess,
    switch: PowerSwitch | None = None,
) -> None:
    """
    Report each stopping run of our partitions once nothing of it is left, and what others have lost.

    The use of GPUs is read from `utilisation`, else from the settings' Prometheus or exporters, else by nobody. Lost
    nodes are turned off by `switch`, else by the configuration's webhook.
    """
    books = await open_books(ports, settings.shard)
    members = Members(ports.bus, ports.clock, settings.shard, "reclamation", ports.instance, settings.lease_seconds)
    informer = Informer(ports.cluster, "pods", ports.clock, pods_of_shard(settings.shard), who=ports.instance)
    node_informer = Informer(ports.cluster, "nodes", ports.clock, who=ports.instance)
    gone = GonePods(books.state)
    pods: PodsByRun[Json] = PodsByRun(informer, dict, gone.note)
    who = ports.instance
    users_informer = Informer(ports.cluster, "pods", ports.clock, USERS_PODS, NAMES_US, only_what_is_judged, who)
    users: UsersPods[Json] = UsersPods(users_informer, dict, gone.note)
    absences = Absences(ports, settings, books.state, pods, users, members, gone)
    fresh = Freshness(ports.clock)
    troubles = NodeTroubles(node_informer, ports.clock, settings.node_gone_seconds, fresh)
    looks = Looks(ports.cluster, ports.ledger, books.state, node_informer, (informer, users_informer), troubles.counted)
    losses = LostRuns(ports, settings, books.state, pods, users, troubles, members, fresh)
    source = source_of(settings, books.state)
    counters = choose_counters(settings, books.state)
    health = HealthLooks(ports, settings, books.state, node_informer, members, counters if settings.measures else None)
    idleness = Idleness(ports, settings, books.state, utilisation or source, members)
    progress = ProgressLooks(ports, settings, books.state, pods, members, fresh, idleness.unused_seconds)
    plan, heads = proposing(reclamation_plan), settings.heads
    proposals = Proposals(ports, settings.shard, "reclamation", books.state, members, plan, reclamation_heads, heads)
    webhook = PowerWebhook(settings, ports.clock)
    fences = Fences(ports, settings, books.state, node_informer, troubles, members, switch or webhook, fresh)
    prices = Prices(ports, settings, books.state, members, learn)
    ports.health.check("looks", fresh.problem)
    for name, what, copy in (
        ("pods", "the pods", informer),
        ("users", "users' pods", users_informer),
        ("nodes", "the nodes", node_informer),
    ):
        ports.health.check(name, partial(_unlisted, what, copy))

    async def on_ledger(entries: list[Entry]) -> None:
        for part in (idleness, absences, losses, progress, proposals):
            await part.on_ledger(entries)

    async def follow_nodes() -> None:
        while True:
            await node_informer.next()

    reader = BooksReader(books, ports, on_ledger, lambda: ports.clock.sleep(LINGER_SECONDS))
    await members.join()
    ports.health.started()
    try:
        await run_loops(
            stop,
            reader.follow(stop),
            absences.follow_pods(),
            absences.follow_users(),
            absences.report(),
            follow_nodes(),
            keep_looking(fresh, ports.clock, looks.look),
            losses.report(),
            progress.report(),
            proposals.propose(),
            fences.work(),
            *(each(ports, settings.shard, books.state, members).propose() for each in PROPOSING),
            health.report(),
            *([idleness.report()] if utilisation or settings.measures else []),
            *([prices.learn_all()] if settings.prices != "off" else []),
        )
    finally:
        copies = (informer.close, users_informer.close, node_informer.close)
        for close in (*copies, source.close, counters.close, webhook.close):
            await close()
        await members.leave()


def _unlisted(what: str, copy: Informer) -> str | None:
    return None if copy.synced else f"{what} have not been listed yet"


def source_of(settings: ReclamationSettings, state: State) -> Prometheus | Exporters:
    """The source of measured GPU use, by the settings."""
    if not settings.utilisation_exporter:
        return Prometheus(settings.utilisation_url, settings.utilisation_query, settings.utilisation_memory_query)
    url, metric = settings.utilisation_exporter, settings.utilisation_metric
    return Exporters(url, metric, lambda: nodes_in_use(state), settings.utilisation_memory_metric)


def choose_counters(settings: ReclamationSettings, state: State) -> QueriedCounters | ScrapedCounters:
    """The source of what DCGM counts, by the settings."""
    if settings.utilisation_exporter:
        return ScrapedCounters(settings.utilisation_exporter, lambda: nodes_with_gpus(state))
    return QueriedCounters(settings.utilisation_url, settings.health_query, lambda: nodes_with_gpus(state))


def nodes_with_gpus(state: State) -> set[str]:
    """The nodes whose GPUs an exporter may know, also those that are missing; a node that is away has none."""
    there = (node for node in state.nodes.values() if not (node.gone or node.silent))
    return {node.name for node in there if node.gpus or node.is_short}


def nodes_in_use(state: State) -> set[str]:
    """The nodes on which runs hold GPUs now."""
    runs = (run for run in state.runs.values() if run.started and not run.stopping)
    return {placement.node for run in runs for placement in run.places if placement.devices}
