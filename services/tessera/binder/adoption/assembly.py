"""Assembly of the binder's part for users' own pods: two watches, and the parts that read them."""

from collections.abc import Callable, Coroutine
from typing import Any

from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.decide.cluster_marks import ClusterMarks
from tessera.binder.adoption.handlers import Adopting
from tessera.binder.adoption.owners.failed_nodes import FailedNodes
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.owners.suspended import Suspended
from tessera.binder.adoption.owners.watches import OwnerWatches
from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.adoption.watch import Groups
from tessera.binder.settings import BinderSettings
from tessera.domain.quota.queue_settings import suspends_waiting
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.process.leases import Members
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera_schemas.cluster.labels import NAMES_US, USERS_PODS


class UsersWork:
    """
    `runs` is what is different about runs of adopted jobs; `hear` are told of each change of users' pods, and
    `on_run_ready` of a run whose pods have come.
    """

    def __init__(
        self, ports: Ports, settings: BinderSettings, state: State, members: Members, fresh: Freshness
    ) -> None:
        cluster, clock = ports.cluster, ports.clock
        self.pods = Informer(cluster, "pods", clock, USERS_PODS, NAMES_US, who=ports.instance)
        self._watches = OwnerWatches(cluster, clock, ports.instance)
        marks = ClusterMarks(state)
        owners = Owners(cluster, clock, self._watches, lambda queue: suspends_waiting(state.tree, marks.queue(queue)))
        self._groups = Groups(self.pods, owners, clock, settings.shard, self._changed, state)
        volumes, failed = VolumeClaims(cluster, clock, owners), FailedNodes()
        self._suspended = Suspended(self._watches, owners, volumes, marks, settings.shard, self._changed)
        self.on_run_ready: Callable[[str], None] = lambda _: None
        self.listeners: list[Callable[[list[Delta]], None]] = [failed.take, self._groups.take]
        adoptions = Adoptions(owners, volumes, marks, state)
        self.runs = AdoptedRuns(ports, settings, self._groups, owners, adoptions, volumes, fresh)
        self._room = LedgerRoom(ports.bus, clock, ports.metrics, settings.shard)
        self._adopting = Adopting(
            ports, settings, state, self._groups, owners, adoptions, self._suspended, failed, members, self._room, fresh
        )

    def problem(self) -> str | None:
        """
        Lists that are still missing. Without the right to see owners all else goes on: they are then fetched one by
        one, and suspended ones are not seen.
        """
        return None if self.pods.synced else "users' pods have not been listed yet"

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Hands new entries of the ledger to the adopting of users' pods."""
        await self._adopting.on_ledger(entries)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """All that is to go on side by side for as long as the binder runs."""
        return [
            self._follow(),
            self._groups.worklist.run(),
            *self._suspended.follow(),
            self._adopting.resync(),
            self._adopting.worklist.run(),
            self._adopting.write_owner_conditions(),
            self._room.watch(),
        ]

    async def _follow(self) -> None:
        while True:
            deltas = await self.pods.next()
            for listener in self.listeners:
                listener(deltas)

    async def close(self) -> None:
        """Ends the watches of users' pods and of their owners."""
        await self.pods.close()
        await self._watches.close()

    def _changed(self, group_id: str) -> None:
        run_id = self.runs.ready_to_claim(group_id)
        if run_id:
            self.on_run_ready(run_id)
        self._adopting.worklist.name(group_id)
