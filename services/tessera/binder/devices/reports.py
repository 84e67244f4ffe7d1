"""
Published devices as facts: each layout before a node names it, each class, and what selectors take of each layout.

Whoever has the partition of a class's or layout's name says it, and again now and then until the ledger has it. A
cluster that does not serve the API of published devices (`resource.k8s.io/v1`) is asked for it every two minutes, and
nothing else is different there.
"""

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError

from tessera.binder.devices.decide.gpus import NO_GPUS, PublishedGpus
from tessera.binder.devices.decide.layouts import OfferedLayout
from tessera.binder.devices.decide.selectors import BadSelector, check_selectors, class_that_answers, takes, views_of
from tessera.binder.devices.index import DeviceIndex, reduced_claim, reduced_rule, reduced_slice
from tessera.binder.devices.numa_zones import ZonesByNode
from tessera.domain.devices.offers import DeviceClass, selection_key
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock, Cluster
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import Json, run_id
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import NodeOffer
from tessera_schemas.ledger import Allocated, DevicesNoted, JobQueued, JobUpdated
from tessera_schemas.shard.ledger_form import PUBLISHED_DEVICES_FROM

API, RULES_API = "resource.k8s.io/v1", "resource.k8s.io/v1beta2"
ABSENT_SECONDS = 120.0
AGAIN_SECONDS = 10.0
"""From one telling of a layout to the next, while the ledger does not have it."""
SELECTING_SECONDS_MAX = 5.0
"""The time in which expressions are evaluated over one layout; they end with an error after it."""
LOOKED_AT_ONCE = 16
"""Kinds of devices, or jobs by hundreds, that are looked at before others get their turn."""
_CLASS, _LAYOUT = "class ", "layout "
ClassSelectors = tuple[str, tuple[str, ...]]
"""Name of a class, and the selectors of a request."""

log = structlog.get_logger()


class DeviceReports:
    """
    Follows slices, classes, claims, taint rules and zones. Names of nodes whose devices changed are told to `on_nodes`.
    """

    def __init__(
        self, cluster: Cluster, facts: Facts, state: State, members: Members, clock: Clock, who: str = ""
    ) -> None:
        self._facts, self._state, self._members, self._clock = facts, state, members, clock
        self._index = DeviceIndex(lambda run: state.runs.get(run) is not None)
        absent = partial(Informer, cluster, clock=clock, who=who, longest_retry_seconds=ABSENT_SECONDS)
        self._slices = absent(f"{API}/ResourceSlice", reduce=partial(reduced_slice, self._index.reader))
        self._classes = absent(f"{API}/DeviceClass")
        self._claims = absent(f"{API}/ResourceClaim", reduce=reduced_claim)
        self._rules = absent(f"{RULES_API}/DeviceTaintRule", reduce=reduced_rule)
        self.on_nodes: list[Any] = []
        self.zones = ZonesByNode(cluster, clock, self._tell_nodes, who)
        self._told: dict[str, float] = {}
        self._wanted: dict[ClassSelectors, None] = {}
        self.worklist = Worklist(self._work, clock, at_once=1)

    @property
    def synced(self) -> bool:
        """Whether slices and claims are listed: before that, and without the API, the ledger's word stands."""
        return self._slices.synced and self._claims.synced and self._state.format >= PUBLISHED_DEVICES_FROM

    def gpus(self, node: str) -> PublishedGpus:
        """GPUs among the devices of the node."""
        offered = self._index.devices(node).offered
        return NO_GPUS if offered is None else offered.gpus

    def offer(self, node: str) -> NodeOffer | None:
        """Offer of the node; None before it is known."""
        return self._index.offer(node) if self.synced else None

    def take_nodes(self, deltas: list[Delta]) -> None:
        """Takes in changes of nodes, whose labels say which pools of several nodes reach them."""
        self._index.take_nodes(deltas)

    def loops(self, resync_seconds: float) -> list[Coroutine[Any, Any, None]]:
        """All that runs for ever."""
        index = self._index
        return [
            self._follow(self._slices, index.take_slices),
            self._follow(self._claims, index.take_claims),
            self._follow(self._rules, index.take_rules),
            self._follow_classes(),
            self._resync(resync_seconds),
            self.zones.follow(),
            self.worklist.run(),
        ]

    async def close(self) -> None:
        """Ends the watches."""
        for informer in (self._slices, self._classes, self._claims, self._rules):
            await informer.close()
        await self.zones.close()

    async def on_ledger(self, entries: Iterable[Entry]) -> None:
        """Looks for selectors that jobs brought, and for layouts and classes that the ledger has now."""
        news, runs = False, dict[str, None]()
        for entry in entries:
            for record in entry.message.records:
                if isinstance(record, Allocated):
                    runs[run_id(record.job_id, record.attempt)] = None
                elif found := getattr(record, "run_id", ""):
                    runs[found] = None
                if isinstance(record, DevicesNoted):
                    news = True
                elif isinstance(record, JobQueued | JobUpdated):
                    news = self._want((self._state.jobs.get(record.job_id),)) or news
        self._tell_nodes(self._index.take_runs(runs))
        if news:
            self._name_layouts()

    async def tell_layout(self, node: str) -> None:
        """Says the node's layout, unless the ledger has it, or it was said a moment ago."""
        if self.synced and (offered := self._index.devices(node).offered) is not None:
            await self._tell_layout(offered)

    # -- following ------------------------------------------------------------------------------------------------

    async def _follow(self, informer: Informer, take: Any) -> None:
        while True:
            nodes = take(await informer.next())
            if self.synced:
                self._tell_nodes(nodes)

    def _tell_nodes(self, nodes: Sequence[str]) -> None:
        for listener in self.on_nodes if nodes else ():
            listener(nodes)

    async def _follow_classes(self) -> None:
        while True:
            deltas: list[Delta] = await self._classes.next()
            # Of several that answer one resource another may be the newest now.
            for name in [*self._class_names(), *(delta.object["metadata"]["name"] for delta in deltas)]:
                self.worklist.name(_CLASS + name)

    def _class_names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self._classes.objects.values()]

    async def _resync(self, every_seconds: float) -> None:
        """Look at everything again: layouts that the ledger forgot, classes that went, jobs that were read late."""
        async for _ in rounds(self._members, self._clock, every_seconds, lambda: self.synced and self._classes.synced):
            self._index.forget_unused()
            self._wanted.clear()
            jobs = list(self._state.jobs.values())
            for at in range(0, len(jobs), 100 * LOOKED_AT_ONCE):
                self._want(jobs[at : at + 100 * LOOKED_AT_ONCE])
                await self._clock.sleep(0)
            for name in dict.fromkeys(
                [*self._class_names(), *(name for name, _ in self._state.device_classes.items())]
            ):
                self.worklist.name(_CLASS + name)
            self._name_layouts()

    def _name_layouts(self) -> None:
        for digest in self._index.layouts:
            self.worklist.name(_LAYOUT + digest)

    def _want(self, jobs: Iterable[Job | None]) -> bool:
        """Remember selectors that these jobs bring; whether there are new ones."""
        before = len(self._wanted)
        for job in jobs:
            for role in () if job is None else job.roles:
                for claim in role.need.claims:
                    for request in claim.requests:
                        self._wanted |= {(each.device_class, each.selectors): None for each in request.choices}
        return len(self._wanted) > before

    # -- telling --------------------------------------------------------------------------------------------------

    async def _work(self, key: str) -> None:
        if partition_of(key) not in self._members.partitions() or not (self.synced and self._classes.synced):
            return
        if key.startswith(_CLASS):
            await self._tell_class(key.removeprefix(_CLASS))
        elif (offered := self._index.layouts.get(key.removeprefix(_LAYOUT))) is not None:
            await self._tell_selections(offered)

    async def _tell_class(self, name: str) -> None:
        known = self._state.device_classes.get(name)
        found = self._classes.named(name)
        try:
            seen = ClassSeen(kind="class_seen", name=name, gone=True) if found is None else read_class(name, found)
        except (ValidationError, TypeError, KeyError, AttributeError) as error:
            log.warning("device_class_not_readable", name=name, error=str(error)[:300])
            return
        if seen.extended_resource and name != class_that_answers(
            seen.extended_resource, self._classes.objects.values()
        ):
            seen = seen.model_copy(update={"extended_resource": ""})
        now = None if seen.gone else DeviceClass(name, seen.selectors, seen.extended_resource)
        if known != now:
            await self._facts.publish(seen)

    async def _tell_layout(self, offered: OfferedLayout) -> None:
        now = self._clock.monotonic()
        told = self._told.get(offered.digest)
        if self._state.layouts.get(offered.digest) is None and (told is None or now - told >= AGAIN_SECONDS):
            self._told = {digest: at for digest, at in self._told.items() if now - at < AGAIN_SECONDS}
            await self._facts.publish(LayoutSeen(kind="layout_seen", layout=offered.layout))
            self._told[offered.digest] = now

    async def _tell_selections(self, offered: OfferedLayout) -> None:
        await self._tell_layout(offered)
        if self._state.layouts.get(offered.digest) is None:
            return  # named again once the ledger has it
        alone: list[ClassSelectors] = [(name, ()) for name, _ in self._state.device_classes.items()]
        for name, selectors in dict.fromkeys([*alone, *self._wanted]):
            known = self._state.device_classes.get(name)
            both = () if known is None else tuple(sorted({*known.selectors, *selectors}))
            if both and self._state.selections.get(selection_key(offered.digest, both)) is None:
                await self._facts.publish(await self._select(offered, both))

    async def _select(self, offered: OfferedLayout, selectors: tuple[str, ...]) -> DevicesSelected:
        devices, error, began = 0, "", self._clock.monotonic()
        try:
            check_selectors(selectors, offered.hidden)
            for at, (view, alike) in enumerate(views_of(offered.seen)):
                devices |= alike if takes(selectors, view) else 0
                if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                    await self._clock.sleep(0)
                if self._clock.monotonic() - began > SELECTING_SECONDS_MAX:
                    raise BadSelector(f"{selectors[0]:.200}: it takes longer than {SELECTING_SECONDS_MAX:g} s")
        except BadSelector as bad:
            devices, error = 0, "".join(each if each.isprintable() else " " for each in str(bad))
        return DevicesSelected(
            kind="devices_selected",
            layout=offered.digest,
            selectors=selectors,
            devices=f"{devices:x}",
            error=error,
        )


def read_class(name: str, found: Json) -> ClassSeen:
    """The class as a fact. Raises ValidationError, TypeError, KeyError or AttributeError for one that is none."""
    spec = found.get("spec") or {}
    return ClassSeen(
        kind="class_seen",
        name=name,
        selectors=tuple(each["cel"]["expression"] for each in spec.get("selectors") or ()),
        extended_resource=spec.get("extendedResourceName") or "",
    )
