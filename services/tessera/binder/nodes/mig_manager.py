"""
Labels by which NVIDIA's mig-manager is asked to cut a node's GPUs: in come changes of the ledger, out goes one patch.

The ledger's change is the truth: whatever the label says, it is set until it names the wanted configuration, and a
binder that dies in between sets it again. The mig-manager's answer to the last question goes with the same patch, so
that nobody takes it for the answer to this one.
"""

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera.kernel.process.leases import Members, partition_of
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 30.0
"""After a refusal, as for want of the right to change nodes."""

log = structlog.get_logger()


class MigManager:
    """Labels of nodes, kept as the ledger's changes want them; `nodes` is an informer that somebody else feeds."""

    def __init__(self, nodes: Informer, cluster: Cluster, state: State, members: Members, clock: Clock) -> None:
        self._nodes, self._cluster, self._state = nodes, cluster, state
        self._members, self._clock = members, clock
        self._refused: str | None = None

    def problem(self) -> str | None:
        """Refusal of the last label, for the service's health."""
        return self._refused

    async def ask(self) -> None:
        """Sets the labels of nodes of our partitions that are to be cut, for ever."""
        while True:
            names = [name for name, change in sorted(self._state.mig_changes.items()) if not change.ended_ts]
            ours = self._members.partitions()
            for name in names:
                if partition_of(name) in ours:
                    await self._set(name)
            if not names:
                self._refused = None
            await self._clock.sleep(LOOK_SECONDS if self._refused is None else AGAIN_SECONDS)

    async def _set(self, name: str) -> None:
        node, change = self._nodes.named(name), self._state.mig_changes.get(name)
        if node is None or change is None or change.ended_ts:
            return
        meta = node["metadata"]
        if (meta.get("labels") or {}).get(MIG_CONFIG_LABEL) == change.config:
            return
        wanted = {MIG_CONFIG_LABEL: change.config, MIG_CONFIG_STATE_LABEL: None}
        try:
            await self._cluster.label_node(name, meta["resourceVersion"], wanted)
        except Transient as error:
            log.warning("mig_config_not_set", node=name, config=change.config, error=str(error))
        except ApiError as error:
            if error.status not in (404, 409):
                self._refused = f"node {name} is to be cut to {change.config}, and the label is refused: {error}"
                log.warning("mig_config_not_set", node=name, config=change.config, error=str(error))
        else:
            self._refused = None
            log.info("mig_config_set", node=name, config=change.config)
