"""Assembly of the binder: fold the ledger, watch pods and nodes, work the runs of our partitions."""

import asyncio

from tessera.binder.adoption.assembly import UsersWork
from tessera.binder.decide.steps import read_pod
from tessera.binder.devices.reports import DeviceReports
from tessera.binder.handlers import Runs
from tessera.binder.nodes.fenced_nodes import FencedNodes
from tessera.binder.nodes.mig_manager import MigManager
from tessera.binder.nodes.other_ledgers import OtherLedgers
from tessera.binder.nodes.others import OthersByNode, informers_of_others
from tessera.binder.nodes.ownership import Ownership
from tessera.binder.nodes.uses import only_what_is_read
from tessera.binder.nodes.watching import NodeReports
from tessera.binder.settings import BinderSettings
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.looks import Looks
from tessera.kernel.kubernetes.node_troubles import NodeTroubles
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.ledger.loop import BooksReader, open_books
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness, keep_looking
from tessera.kernel.tasks.task_group import run_loops
from tessera_schemas.cluster.labels import pods_of_shard


async def serve(ports: Ports, settings: BinderSettings, stop: asyncio.Event) -> None:
    """Carry out the ledger's decisions on our partitions' runs, and publish what the cluster shows."""
    books = await open_books(ports, settings.shard)
    ours = pods_of_shard(settings.shard)
    pod_informer = Informer(ports.cluster, "pods", ports.clock, ours, reduce=only_what_is_read, who=ports.instance)
    node_informer = Informer(ports.cluster, "nodes", ports.clock, who=ports.instance)
    fresh = Freshness(ports.clock)
    troubles = NodeTroubles(node_informer, ports.clock, settings.node_gone_seconds, fresh)
    service, lease, who = settings.service, settings.lease_seconds, ports.instance
    members = Members(ports.bus, ports.clock, settings.shard, service, who, lease, lambda: fresh.is_fresh)
    ownership = Ownership(node_informer, ports.cluster, ports.clock, settings.shard)
    users = UsersWork(ports, settings, books.state, members, fresh)
    pods = PodsByRun(pod_informer, read_pod)
    runs = Runs(ports, settings, books.state, pods, troubles, ownership, members, users.runs, fresh)
    facts = Facts(ports.bus, settings.shard, "binder")
    others = OthersByNode(informers_of_others(ports.cluster, ports.clock, ports.instance), users.pods)
    looks = Looks(ports.cluster, ports.ledger, books.state, node_informer, (pod_informer,), troubles.counted)
    seconds, caught_up = settings.others_seconds, lambda: looks.caught_up
    devices = DeviceReports(ports.cluster, facts, books.state, members, ports.clock, ports.instance)
    nodes = NodeReports(
        node_informer, others, devices, ownership, facts, books.state, members, ports.clock, seconds, caught_up
    )
    mig_manager = MigManager(node_informer, ports.cluster, books.state, members, ports.clock)
    fenced = FencedNodes(node_informer, ports.cluster, books.state, members, ports.clock)
    users.listeners += [runs.on_users, nodes.on_users]
    users.on_run_ready = runs.worklist.name
    runs.listeners.append(nodes.on_pods)
    strangers = OtherLedgers(books.state, ports.metrics)
    runs.listeners.append(strangers.take)
    ports.health.check("looks", fresh.problem)
    ports.health.check("installation", strangers.problem)
    ports.health.check("pods", lambda: None if pod_informer.synced else "the pods have not been listed yet")
    ports.health.check("services", runs.problem)
    ports.health.check("users", users.problem)
    ports.health.check("mig", mig_manager.problem)
    ports.health.check("fenced", fenced.problem)
    ports.health.check("nodes", lambda: None if node_informer.synced else "the nodes have not been listed yet")
    ports.health.check("others", lambda: None if others.synced else "pods of others have not been listed yet")

    async def on_ledger(entries: list[Entry]) -> None:
        await runs.on_ledger(entries)
        await users.on_ledger(entries)
        await devices.on_ledger(entries)

    reader = BooksReader(books, ports, on_ledger)
    await members.join()
    ports.health.started()
    try:
        await run_loops(
            stop,
            reader.follow(stop),
            keep_looking(fresh, ports.clock, looks.look),
            runs.follow_pods(),
            runs.follow_services(),
            runs.published.follow(),
            runs.resync(),
            runs.worklist.run(),
            runs.events.publish(),
            runs.warnings.read(),
            *users.loops(),
            *nodes.loops(settings.resync_seconds),
            mig_manager.ask(),
            fenced.work(),
            *devices.loops(settings.resync_seconds),
        )
    finally:
        await pod_informer.close()
        await node_informer.close()
        await asyncio.gather(*(informer.close() for informer in others.informers))
        await devices.close()
        await runs.close()
        await users.close()
        await members.leave()
