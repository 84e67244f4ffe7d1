"""
Kubernetes' word for nodes that were turned off: in come confirmed requests of the ledger, out goes one patch each.

With the taint everything that follows is as after an operator's: pods come off the node by force, and their runs start
elsewhere. A mark beside the taint says that it is ours, for which request, and which boot of the machine it was: only
such a taint is taken off again, once the node answers from another boot or an operator has taken the request back.
"""

from collections.abc import Mapping

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.node_troubles import is_ready
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera.kernel.process.leases import Members, partition_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import FENCE_ANNOTATION, OUT_OF_SERVICE_TAINT

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 30.0
"""After a refusal, as for want of the right to change nodes."""
OFF: Mapping[str, str] = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}

log = structlog.get_logger()


class FencedNodes:
    """Taints of nodes, kept as the ledger's requests want them; `nodes` is an informer that somebody else feeds."""

    def __init__(self, nodes: Informer, cluster: Cluster, state: State, members: Members, clock: Clock) -> None:
        self._nodes, self._cluster, self._state = nodes, cluster, state
        self._members, self._clock = members, clock
        self._refused: str | None = None
        self._doubted: set[str] = set()

    def problem(self) -> str | None:
        """Refusal of the last taint, for the service's health."""
        return self._refused

    async def work(self) -> None:
        """Sets and takes off the taints of nodes of our partitions, for ever."""
        while True:
            ours = self._members.partitions()
            due = [node for node in self._nodes.objects.values() if self._wanted(node) is not None]
            for node in sorted(due, key=lambda node: str(node["metadata"]["name"])):
                if partition_of(node["metadata"]["name"]) in ours:
                    await self._set(node)
            if not due:
                self._refused = None
            await self._clock.sleep(LOOK_SECONDS if self._refused is None else AGAIN_SECONDS)

    def _wanted(self, node: Json) -> tuple[list[Json], str | None] | None:
        """The node's taints and our mark as they should be; None where they are so."""
        name, boot = node["metadata"]["name"], _boot_of(node)
        request, _, marked_boot = _mark_of(node).partition("/")
        taints = list((node.get("spec") or {}).get("taints") or ())
        others = [taint for taint in taints if taint.get("key") != OUT_OF_SERVICE_TAINT]
        fence = self._state.fences.get(name)
        if request:
            undone = fence is not None and fence.request == request and fence.outcome == "undone"
            if undone or (is_ready(node) and boot != marked_boot):
                return others, None
            self._doubt(name, is_ready(node))
        confirmed = fence is not None and fence.outcome == "off" and not fence.back_ts
        if not confirmed or fence is None or is_ready(node) or request == fence.request or others != taints:
            return None
        return [*taints, dict(OFF)], f"{fence.request}/{boot}"

    def _doubt(self, name: str, answers: bool) -> None:
        """Tell of a node that answers from the boot that was said to be over: its taint stays until a person looks."""
        if answers and name not in self._doubted:
            log.error("fenced_node_was_not_off", node=name)
        (self._doubted.add if answers else self._doubted.discard)(name)

    async def _set(self, node: Json) -> None:
        wanted, name = self._wanted(node), node["metadata"]["name"]
        if wanted is None:
            return
        taints, mark = wanted
        version, words = node["metadata"]["resourceVersion"], "on" if mark else "off"
        try:
            await self._cluster.taint_node(name, version, taints, {FENCE_ANNOTATION: mark})
        except Transient as error:
            log.warning("out_of_service_not_set", node=name, wanted=words, error=str(error))
        except ApiError as error:
            if error.status not in (404, 409):
                self._refused = f"the out-of-service taint of node {name} is to be {words}, and is refused: {error}"
                log.warning("out_of_service_not_set", node=name, wanted=words, error=str(error))
        else:
            self._refused = None
            log.warning("out_of_service_set", node=name, wanted=words)


def _mark_of(node: Json) -> str:
    return str((node["metadata"].get("annotations") or {}).get(FENCE_ANNOTATION, ""))


def _boot_of(node: Json) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))
