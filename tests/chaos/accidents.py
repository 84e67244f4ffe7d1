"""Accidents of machines, of what pods need around them, and of people with rights on pods; each ends after seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

from tessera.kernel.ports import ApiError
from tessera_schemas.cluster.labels import ENDED_PHASES
from tests.e2e.live import TENANTS

Accident = Callable[[], Awaitable[str]]


class Cluster(Protocol):
    """What orders faults of the simulated cluster, and reads from it."""

    async def order(self, fault: str, **fields: Any) -> None: ...

    async def items(self, kind: str) -> list[dict[str, Any]]: ...


class Accidents:
    """Accidents on the nodes of one platform. Ordered errors hit these calls, too: each is tried some times."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self._cluster, self._chance = cluster, chance
        self.kinds: tuple[Accident, ...] = (
            self.evict_a_pod,
            self.cordon_a_node,
            self.cordon_all_nodes,
            self.taint_a_node,
            self.take_a_device_plugin_away,
            self.take_all_device_plugins_away,
            self.lose_a_gpu,
            self.refuse_pods,
            self.start_nothing,
            self.prepare_nothing,
            self.stop_nothing,
            self.lose_a_registry,
            self.forbid_pods,
            self.reboot_a_node,
            self.shut_a_node_down,
            self.press_a_node,
        )

    # -- people and other controllers

    async def evict_a_pod(self) -> str:
        if (meta := await self._pod()) is None:
            return "no pod to evict"
        with suppress(ApiError):  # it is gone, or a budget keeps it
            await self._cluster.order("evict_pod", namespace=meta["namespace"], name=meta["name"])
        return f"pod {meta['name']} evicted through the API"

    async def cordon_a_node(self) -> str:
        return await self._cordoned([await self._node()])

    async def cordon_all_nodes(self) -> str:
        """As before an upgrade of the cluster; what is submitted meanwhile waits."""
        return await self._cordoned(await self._nodes())

    async def _cordoned(self, nodes: list[str]) -> str:
        for node in nodes:
            await self._order("node_cordoned", node=node, cordoned=True)
        seconds = await self._last(1.0, 6.0)
        for node in nodes:
            await self._order("node_cordoned", node=node, cordoned=False)
        return f"{len(nodes)} nodes cordoned for {seconds:.1f} s"

    async def taint_a_node(self) -> str:
        node = await self._node()
        taint = {"node": node, "key": "maintenance", "effect": "NoExecute"}
        await self._order("node_taint", **taint)
        seconds = await self._last(0.5, 4.0)
        await self._order("node_taint", **taint, on=False)
        return f"node {node} tainted NoExecute for {seconds:.1f} s"

    async def forbid_pods(self) -> str:
        namespace = self._chance.choice(TENANTS)
        await self._order("forbid_creates", namespace=namespace)
        seconds = await self._last(1.0, 5.0)
        await self._order("forbid_creates", namespace=namespace, on=False)
        return f"new pods of {namespace} answered 403 for {seconds:.1f} s"

    # -- devices

    async def take_a_device_plugin_away(self) -> str:
        return await self._without_plugins([await self._node()])

    async def take_all_device_plugins_away(self) -> str:
        """A rollout that fails; what is submitted meanwhile waits."""
        return await self._without_plugins(await self._nodes())

    async def _without_plugins(self, nodes: list[str]) -> str:
        for node in nodes:
            await self._order("device_plugins", node=node, there=False)
        seconds = await self._last(1.0, 6.0)
        for node in nodes:
            await self._order("device_plugins", node=node, there=True)
        return f"device plugin away on {len(nodes)} nodes for {seconds:.1f} s"

    async def lose_a_gpu(self) -> str:
        node = await self._node()
        await self._order("unhealthy_gpus", node=node, gpus=1)
        seconds = await self._last(1.0, 5.0)
        await self._order("unhealthy_gpus", node=node, gpus=0)
        return f"node {node} had one GPU less to give for {seconds:.1f} s"

    # -- kubelets

    async def refuse_pods(self) -> str:
        node = await self._node()
        await self._order("node_refusing", node=node)
        seconds = await self._last(1.0, 5.0)
        await self._order("node_refusing", node=node, why="")
        return f"node {node} refused pods for {seconds:.1f} s"

    async def start_nothing(self) -> str:
        return await self._switched("node_starting_nothing", "started nothing", 8.0)

    async def prepare_nothing(self) -> str:
        node = await self._node()
        await self._order("node_preparing_nothing", node=node)
        seconds = await self._last(1.0, 8.0)
        await self._order("node_preparing_nothing", node=node, why="")
        return f"node {node} made no sandboxes for {seconds:.1f} s"

    async def stop_nothing(self) -> str:
        return await self._switched("node_stuck", "stopped nothing", 6.0)

    async def lose_a_registry(self) -> str:
        await self._order("images_out")
        seconds = await self._last(1.0, 6.0)
        await self._order("images_out", why="")
        return f"no image was pulled for {seconds:.1f} s"

    # -- machines

    async def reboot_a_node(self) -> str:
        node, left = await self._node(), self._chance.choice(("killed", "stopped", "unknown"))
        await self._order("node_reboot", node=node, left=left)
        seconds = await self._last(0.5, 6.0)
        await self._order("node_reachable", node=node, reachable=True)
        return f"node {node} began anew ({left}), silent for {seconds:.1f} s"

    async def shut_a_node_down(self) -> str:
        node = await self._node()
        await self._order("node_shutdown", node=node)
        await self._last(0.5, 3.0)
        await self._order("node_reboot", node=node)
        await self._last(0.5, 3.0)
        await self._order("node_reachable", node=node, reachable=True)
        return f"node {node} shut down in order, and back"

    async def press_a_node(self) -> str:
        node = await self._node()
        await self._order("node_pressure", node=node)
        meta = await self._pod(node)
        if meta is not None:
            with suppress(ApiError):
                await self._cluster.order(
                    "evict_pod", namespace=meta["namespace"], name=meta["name"], pressure="memory"
                )
        seconds = await self._last(1.0, 4.0)
        await self._order("node_pressure", node=node, on=False)
        return f"node {node} low on memory for {seconds:.1f} s, {'a' if meta else 'no'} pod evicted"

    async def heal(self) -> None:
        """End whatever an order that was lost has left."""
        for node in await self._nodes():
            await self._order("node_healed", node=node)
            await self._order("node_taint", node=node, key="maintenance", effect="NoExecute", on=False)
        await self._order("images_out", why="")
        for namespace in TENANTS:
            await self._order("forbid_creates", namespace=namespace, on=False)

    # -- parts

    async def _switched(self, fault: str, what: str, longest: float) -> str:
        node = await self._node()
        await self._order(fault, node=node, on=True)
        seconds = await self._last(1.0, longest)
        await self._order(fault, node=node, on=False)
        return f"node {node} {what} for {seconds:.1f} s"

    async def _last(self, shortest: float, longest: float) -> float:
        seconds = self._chance.uniform(shortest, longest)
        await asyncio.sleep(seconds)
        return seconds

    async def _nodes(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in await self._again(lambda: self._cluster.items("nodes")))

    async def _node(self) -> str:
        return self._chance.choice(await self._nodes())

    async def _pod(self, node: str = "") -> dict[str, Any] | None:
        """Metadata of a bound pod of a tenant that has not ended, on this node or ("") on any."""
        found = [
            pod["metadata"]
            for pod in await self._again(lambda: self._cluster.items("pods"))
            if pod["metadata"]["namespace"] in TENANTS
            and pod["status"].get("phase") not in ENDED_PHASES
            and (pod["spec"].get("nodeName") or "")
            and node in ("", pod["spec"]["nodeName"])
        ]
        return self._chance.choice(found) if found else None

    async def _order(self, fault: str, **fields: Any) -> None:
        with suppress(ApiError):  # the node that it is about was removed
            await self._again(lambda: self._cluster.order(fault, **fields))

    async def _again(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Raise the last ApiError of twenty, since ordered errors hit our calls, too; 404 is an answer."""
        for left in reversed(range(20)):
            try:
                return await call()
            except ApiError as error:
                if error.status == 404 or not left:
                    raise
        raise AssertionError("never reached")
