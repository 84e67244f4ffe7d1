"""Wiring of reclamation: fold the ledger, watch the pods, report what is absent."""

import asyncio

from tessera.kernel.informer import Informer
from tessera.kernel.leases import Members
from tessera.kernel.ledger_loop import fold_ledger
from tessera.kernel.pods_by_run import PodsByRun
from tessera.kernel.service import Ports
from tessera.kernel.shard import restore
from tessera.kernel.together import together
from tessera.reclamation.handlers import Absences
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.labels import RUN_LABEL


async def serve(ports: Ports, settings: ReclamationSettings, stop: asyncio.Event) -> None:
    """Report each stopping run of our partitions once nothing of it is left."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    members = Members(ports.bus, ports.clock, settings.shard, "reclamation", ports.instance, settings.lease_seconds)
    informer = Informer(ports.cluster, "pods", ports.clock, RUN_LABEL)
    absences = Absences(ports, settings, shard.state, PodsByRun(informer, dict), members)
    ports.health.check("pods", lambda: None if informer.synced else "the pods have not been listed yet")
    await members.join()
    ports.health.started()
    try:
        await together(
            stop, fold_ledger(ports, shard, absences.on_ledger, stop), absences.follow_pods(), absences.report()
        )
    finally:
        await informer.close()
        await members.leave()
