"""The faults that are not a single call's: crashes, partitions, pauses, jumps of clocks, a cluster that misbehaves."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera.kernel.errors import KernelError
from tessera.kernel.ports import ApiError, Outgoing
from tessera.testkit.sim.accidents import Accidents
from tessera.testkit.sim.planner import plan_by_chance
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import GPU_RESOURCE, SIMULATE_PREFIX
from tessera_schemas.facts import AnyFact, FactMessage, PricesLearnt, RunIdle, RunUsed, owner
from tessera_schemas.work.measured_use import MeasuredUse


def prices_by_chance(state: State, random: Random) -> PricesLearnt | None:
    """Prices by chance for one pool; None while no pool was asked for anything."""
    pools = sorted(mix.pool for mix in state.mixes.values())
    mix = state.mixes.get(random.choice(pools)) if pools else None
    if mix is None:
        return None
    kinds = [kind for kind, _ in mix.known[random.random() < 0.3 :]]
    return PricesLearnt(
        kind="prices_learnt",
        pool=mix.pool,
        settled=max(1, mix.settled + random.choice((-1, 0, 0, 1))),
        basis_n=state.n,
        gpus=random.randrange(1, 9),
        engine=ENGINE_ID,
        learnt_by="auction",
        prices=tuple(random.randrange(2000 * kind.gpu_milli * kind.gpus + 1) for kind in kinds) or (0,),
    )


PAUSE_SECONDS = 7.0
FOREIGN = "theirs"
VERBS = ("create", "bind", "delete", "patch", "list", "get")


class Chaos:
    """Faults of a run: at least five and a crash of the committer until `seconds`, then none."""

    def __init__(
        self,
        services: SimulatedServices,
        random: Random,
        nodes: list[NodeRow],
        seconds: float,
        points: Sequence[str],
        state: Callable[[], State],
    ) -> None:
        """
        `nodes` are what the cluster began with. `points` are the named crash points, each of another service, that this
        run arms in every instance of theirs from the beginning. `state` is what the ledger makes of the shard now.
        """
        self._services, self._random, self._seconds, self._state = services, random, seconds, state
        self._points = {point.split(" ")[0]: point for point in points}
        self._rows = {row.name: row for row in nodes}
        self._nodes = list(self._rows)
        self._foreign = 0
        self._accidents = Accidents(
            services.cluster, services.clock, Random(random.randrange(1 << 30)), nodes, services.coverage
        )
        self._kinds = (
            self._crash,
            self._crash,
            self._partition,
            self._pause_committer,
            self._api_errors,
            self._expire_watches,
            self._delete_pod,
            self._vanish_pod,
            self._lose_node,
            self._lose_nodes,
            self._cordon_node,
            self._shrink_node,
            self._hang_stops,
            self._take_plugins_away,
            self._power_off_node,
            self._remove_node,
            self._foreign_pod,
            self._wipe_store,
            self._clock_jump,
        )

    async def run(self) -> None:
        """Makes faults at random times until `seconds` of the loop's time, and one crash of the committer at least."""
        loop, random = asyncio.get_running_loop(), self._random
        times = sorted(random.uniform(1.0, self._seconds) for _ in range(random.randrange(6, 12)))
        committer_at = random.uniform(1.0, self._seconds * 0.8)
        for slot in sorted(self._services.members):
            self._services.members[slot].faults.crash_point = self._points.get(slot.split("/")[0], "")
        beside = (self._land_late_publishes(), self._send_random_facts(), self._accidents.run(self._seconds))
        meanwhile = [asyncio.create_task(work) for work in beside]
        try:
            for at in sorted([*times, committer_at]):
                await self._services.clock.sleep(max(0.0, at - loop.time()))
                with suppress(ApiError):  # the node that it is about was removed
                    await (self._crash_committer() if at == committer_at else random.choice(self._kinds)())
            await self._services.clock.sleep(max(0.0, self._seconds - loop.time()))
            if not self._services.coverage.crashes["scheduler"]:
                self._services.kill(self._committer() or "scheduler")  # the armed call never came
        finally:
            for task in meanwhile:
                task.cancel()
            self.end()

    def end(self) -> None:
        """The world heals: what was cut off is reached again, and what hung somewhere arrives at last."""
        self._services.rates.stop()
        self._services.cluster.faults.clear()
        for member in self._services.members.values():
            member.faults.cut_off, member.faults.crash_at, member.faults.crash_point = False, None, ""
        for node, row in self._rows.items():
            if self._put_back(node):
                self._services.cluster.power_off(node)  # what was gone for so long is another machine of that name
            self._services.cluster.set_stuck(node, False)
            self._services.cluster.set_reachable(node, True)
            self._services.cluster.set_gpus(node, row.gpus)
        self._accidents.end()
        for number in range(self._foreign):
            with suppress(ApiError):  # it is gone already
                self._services.cluster.vanish(FOREIGN, f"foreign-{number}")
        for out in list(self._services.broker.limbo):
            self._services.broker.land(out)

    async def _land_late_publishes(self) -> None:
        while True:
            await self._services.clock.sleep(self._random.uniform(0.1, 2.0))
            limbo = self._services.broker.limbo
            if limbo:
                landed = self._services.broker.land(limbo[self._random.randrange(len(limbo))])
                if not isinstance(landed, KernelError):
                    self._services.coverage.fault("late publish")

    async def _send_random_facts(self) -> None:
        """
        Plans that nobody searched, idleness that nobody measured and prices that nobody learnt, in the name of whoever
        may say them.

        Where GPUs are measured is a server that is not here; and who proposes or learns may be behind, or wrong.
        """
        while True:
            await self._services.clock.sleep(self._random.uniform(0.05, 0.8))
            if self._random.random() < 0.4:
                plan = plan_by_chance(self._state(), self._random)
                if plan is not None:
                    self._send(plan)
                    self._services.coverage.fault("plan by chance")
                continue
            if self._random.random() < 0.1:
                prices = prices_by_chance(self._state(), self._random)
                if prices is not None:
                    self._send(prices)
                    self._services.coverage.fault("prices by chance")
                continue
            if self._random.random() < 0.5:
                continue
            running = sorted(run.run_id for run in self._state().runs.values() if run.started and not run.stopping)
            if running:
                seconds, run_id = self._random.choice((0, 1, 5)), self._random.choice(running)
                self._send(RunIdle(kind="run_idle", run_id=run_id, idle_seconds=seconds))
                self._services.coverage.fault("idleness by chance")
                measured = self._random.randint(1, 20_000_000)  # more than most runs hold, or less than is known
                use = MeasuredUse(measured_gpu_milli_ms=measured, worked_gpu_milli_ms=measured // 2, gpus=seconds)
                self._send(RunUsed(kind="run_used", run_id=run_id, use=use))
                self._services.coverage.fault("use by chance")

    def _send(self, fact: AnyFact) -> None:
        subject = subjects.fact(SHARD, owner(fact), fact.kind.replace("_", "-"))
        self._services.broker.store(Outgoing(subject, FactMessage(v=1, fact=fact).to_bytes()))

    async def _slot(self) -> str:
        """Any instance, once there is one: a process of all services may be down."""
        while not self._services.members:
            await self._services.clock.sleep(0.1)
        return self._random.choice(sorted(self._services.members))

    async def _crash(self) -> None:
        self._services.crash(await self._slot())

    def _committer(self) -> str | None:
        """The slot of the scheduler whose lease is the newest, if it is up."""
        last = self._services.broker.stream(f"LEASES_{SHARD}").last(f"lease.{SHARD}.scheduler.leader")
        holder = "" if last is None else last.data.decode()
        return next((s for s, m in sorted(self._services.members.items()) if f'"{m.ports.instance}"' in holder), None)

    async def _crash_committer(self) -> None:
        slot = self._committer() or "scheduler"
        self._services.crash(slot)

    async def _pause_committer(self) -> None:
        """SIGSTOP beyond its lease: it wakes as a stale committer, in the middle of what it was doing."""
        slot = self._committer()
        if slot is not None and slot in self._services.members:
            self._services.members[slot].faults.pause(PAUSE_SECONDS)
            self._services.coverage.fault("stale committer")

    async def _partition(self) -> None:
        slot = await self._slot()
        member = self._services.members[slot]
        member.faults.cut_off = True
        self._services.coverage.fault("partition")
        await self._services.clock.sleep(self._random.uniform(0.2, 3.0))
        member.faults.cut_off = False

    async def _clock_jump(self) -> None:
        member = self._services.members[await self._slot()]
        member.clock.skew_ms += self._random.choice((-3_600_000, -5_000, 5_000, 20_000))
        self._services.coverage.fault("clock jump")

    async def _api_errors(self) -> None:
        status = self._random.choice((409, 429, 500, 503))
        verb = self._random.choice(VERBS)
        self._services.cluster.faults.answer(verb, status, self._random.randrange(1, 5))
        self._services.coverage.fault("api error")

    async def _expire_watches(self) -> None:
        self._services.cluster.close_watches()
        if self._random.random() < 0.5:
            self._services.cluster.expire_history()
        self._services.coverage.fault("watch expired")

    async def _delete_pod(self) -> None:
        with suppress(ApiError):  # an ordered error hit this call instead of a service's
            pods, _ = self._services.cluster.list("pods")
            if pods:
                meta = self._random.choice(pods).object["metadata"]
                self._services.cluster.delete("pods", meta["namespace"], meta["name"])
                self._services.coverage.fault("pod deleted")

    async def _vanish_pod(self) -> None:
        """Somebody forced the finalizer off: the object is gone without a trace."""
        with suppress(ApiError):
            pods, _ = self._services.cluster.list("pods")
            if pods:
                meta = self._random.choice(pods).object["metadata"]
                self._services.cluster.vanish(meta["namespace"], meta["name"])
                self._services.coverage.fault("pod vanished")

    async def _lose_node(self) -> None:
        node = self._random.choice(self._nodes)
        self._services.cluster.set_reachable(node, False)
        self._services.coverage.fault("node unreachable")
        await self._services.clock.sleep(self._random.uniform(0.5, 6.0))
        self._services.cluster.set_reachable(node, True)

    async def _lose_nodes(self) -> None:
        """A switch fails: two nodes are silent at once, and with them runs, as soon as there are any on two."""
        there = self._nodes
        for _ in range(20):
            held = {p.node for run in self._state().runs.values() if not run.stopping for p in run.places}
            there = sorted(held & self._rows.keys())
            if len(there) > 1:
                break
            await self._services.clock.sleep(0.2)
        nodes = self._random.sample(there if len(there) > 1 else self._nodes, 2)
        for node in nodes:
            with suppress(ApiError):
                self._services.cluster.set_reachable(node, False)
        self._services.coverage.fault("nodes unreachable together")
        await self._services.clock.sleep(self._random.uniform(4.0, 10.0))
        for node in nodes:
            with suppress(ApiError):
                self._services.cluster.set_reachable(node, True)

    async def _cordon_node(self) -> None:
        node = self._random.choice(self._nodes)
        self._services.cluster.set_cordoned(node, True)
        self._services.coverage.fault("node cordoned")
        await self._services.clock.sleep(self._random.uniform(0.5, 3.0))
        self._services.cluster.set_cordoned(node, False)

    async def _hang_stops(self) -> None:
        """Pods of a node do not stop, for longer than some policies have patience."""
        node = self._random.choice(self._nodes)
        self._services.cluster.set_stuck(node, True)
        self._services.coverage.fault("pods do not stop")
        await self._services.clock.sleep(self._random.uniform(1.0, 12.0))
        self._services.cluster.set_stuck(node, False)

    async def _shrink_node(self) -> None:
        """
        Half of its GPUs or more fall off; of a node that runs hold some of, if there is one, also some of these.

        Sometimes kubelets say in the status of a pod there that its own is broken. Later they are back.
        """
        devices = {(p.node, gpu) for run in self._state().runs.values() for p in run.places for gpu in p.devices}
        held = Counter(node for node, _ in devices)
        have = [node for node, row in self._rows.items() if row.gpus]
        node = self._random.choice([node for node in have if held[node]] or have)
        left = min(self._rows[node].gpus // 2 + 1, held[node] or self._rows[node].gpus)
        self._services.cluster.set_gpus(node, self._random.randrange(left))
        self._services.coverage.fault("node shrunk")
        if self._random.random() < 0.7:
            self._break_device(node)
        await self._services.clock.sleep(self._random.uniform(0.5, 5.0))
        self._services.cluster.set_gpus(node, self._rows[node].gpus)

    def _break_device(self, node: str) -> None:
        pods = [version.object for version in self._services.cluster.list("pods")[0]]
        there = [pod["metadata"] for pod in pods if (pod.get("spec") or {}).get("nodeName") == node]
        if there:
            meta = self._random.choice(there)
            self._services.cluster.set_device_health(meta["namespace"], meta["name"])
            self._services.coverage.fault("device broken")

    async def _take_plugins_away(self) -> None:
        """The device plugins of several nodes are rolled out: nothing is allocatable for a while, containers go on."""
        nodes = self._random.sample(self._nodes, self._random.randrange(1, len(self._nodes)))
        for node in nodes:
            with suppress(ApiError):
                self._services.cluster.set_device_plugins(node, False)
        self._services.coverage.fault("device plugins away")
        await self._services.clock.sleep(self._random.uniform(0.5, 5.0))
        for node in nodes:
            with suppress(ApiError):
                self._services.cluster.set_device_plugins(node, True)

    async def _power_off_node(self) -> None:
        """Power a node off, and say so as an operator: what it held is gone for good."""
        node = self._random.choice(self._nodes)
        self._services.cluster.set_reachable(node, False)
        await self._services.clock.sleep(self._random.uniform(0.1, 1.0))
        self._services.cluster.set_out_of_service(node, True)
        self._services.coverage.fault("node out of service")
        await self._services.clock.sleep(self._random.uniform(0.5, 4.0))
        self._services.cluster.set_out_of_service(node, False)
        self._services.cluster.set_reachable(node, True)

    async def _remove_node(self) -> None:
        """Remove a node's object, with nobody to end its pods; a node of that name comes back later."""
        node = self._random.choice(self._nodes)
        self._services.cluster.remove_node(node)
        self._services.coverage.fault("node removed")
        await self._services.clock.sleep(self._random.uniform(0.5, 6.0))
        if self._random.random() < 0.5:  # else it stays away until the world heals
            self._put_back(node)

    def _put_back(self, node: str) -> bool:
        """Put a node back; whether its object was gone."""
        with suppress(ApiError):  # it is there
            self._services.cluster.create("nodes", "", node_object(self._rows[node], node))
            return True
        return False

    async def _foreign_pod(self) -> None:
        """Somebody else's pod is there all at once, and takes what it asks for if its kubelet lets it."""
        node, name = self._random.choice(self._nodes), f"foreign-{self._foreign}"
        self._foreign += 1
        asked = {"cpu": str(self._random.randrange(1, 17)), GPU_RESOURCE: str(self._random.randrange(4))}
        container = {"name": "main", "image": "theirs", "resources": {"requests": asked, "limits": asked}}
        meta = {"name": name, "annotations": {f"{SIMULATE_PREFIX}seconds": "3600"}}
        spec = {"schedulerName": "default-scheduler", "nodeName": node, "containers": [container]}
        with suppress(ApiError):
            self._services.cluster.create("pods", FOREIGN, {"metadata": meta, "spec": spec})
            self._services.coverage.fault("foreign pod")
        await self._services.clock.sleep(self._random.uniform(0.5, 6.0))
        if self._random.random() < 0.7:  # else it stays until the world heals
            with suppress(ApiError):
                self._services.cluster.vanish(FOREIGN, name)

    async def _wipe_store(self) -> None:
        self._services.views.wipe()
        self._services.coverage.fault("store wiped")
