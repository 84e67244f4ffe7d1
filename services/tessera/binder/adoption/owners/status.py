"""
Status of a group's own object: a condition whether its pods have their nodes, and why not.

Kubernetes' own PodGroups are written at once, as their API wants it. Jobs and their like are written a few a second,
beside the way to a node: changed codes go before changed numbers, and the last condition of an object counts.
"""

import asyncio

import structlog

from tessera.binder.adoption.decide.owner_conditions import PLACED, placed_condition, placed_patch
from tessera.binder.adoption.decide.verdicts import Verdict
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.bounded import BoundedDict
from tessera.binder.workloads.reading import format_time, text
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import kind_of
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.base import Json

PASSES = (403, 404)
"""We may not, or it is gone: its pods say the same, and no repeat changes it."""
REMEMBERED = 16_384
RENEWED_SECONDS = 60.0

log = structlog.get_logger()


class OwnerStatus:
    """
    Writer of owners' conditions. Its memory of the last one only saves looks: the object itself has it after a restart.
    """

    def __init__(self, cluster: Cluster, clock: Clock, owners: Owners, per_second: float) -> None:
        self._cluster, self._clock, self._owners, self._per_second = cluster, clock, owners, per_second
        self._written: BoundedDict[OwnerRef, tuple[Verdict, float]] = BoundedDict(REMEMBERED)
        self._changed: dict[OwnerRef, Verdict] = {}
        self._renewals: BoundedDict[OwnerRef, Verdict] = BoundedDict(REMEMBERED)
        self._wake = asyncio.Event()

    def queue(self, ref: OwnerRef, verdict: Verdict) -> None:
        """Queue a verdict to be written in its turn, if the kind has such a condition and does not show it already."""
        kind = kind_of(ref)
        if kind is None or not kind.condition or not self._per_second:
            return
        written, at = self._written.get(ref, (None, 0.0))
        # A new code takes the place of whatever was to be renewed: of two writes the older could come last.
        if written is None or written.code != verdict.code:
            self._renewals.pop(ref, None)
            self._changed[ref] = verdict
        # Numbers alone may wait: they change with every message, and a write for each would be one per owner and
        # message.
        elif written.message != verdict.message and self._clock.monotonic() >= at + RENEWED_SECONDS:
            self._renewals[ref] = verdict
        else:
            self._changed.pop(ref, None)
        self._wake.set()

    def is_unplaced(self, ref: OwnerRef) -> bool:
        """Whether its condition is, or is about to be, False; an owner whose pods start at once has no condition."""
        if ref in self._changed or ref in self._written:
            return self._changed.get(ref, self._written[ref][0] if ref in self._written else PLACED) is not PLACED
        seen, kind = self._owners.seen(ref), kind_of(ref)
        return seen is not None and kind is not None and placed_condition(seen, kind).get("status") == "False"

    def says_placed(self, ref: OwnerRef | None) -> bool:
        """Whether the last verdict that was written on the object is that its pods have their nodes."""
        return ref is not None and ref in self._written and self._written[ref][0] is PLACED

    async def run(self) -> None:
        """Write what was queued, one object after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._changed or self._renewals:
                line = self._changed or self._renewals
                ref = next(iter(line))
                await self.write(ref, line.pop(ref))
                await self._clock.sleep(1 / self._per_second)

    async def write(self, ref: OwnerRef, verdict: Verdict) -> None:
        """Write a verdict now, unless it was the last one written; the next look repeats a write that failed."""
        written = self._written.get(ref)
        if written is not None and written[0] == verdict:
            return
        try:
            await self._write(ref, verdict)
        except (ApiError, Transient) as error:
            if not (isinstance(error, ApiError) and error.status in PASSES):
                log.warning("owner_not_told", owner=ref.name, namespace=ref.namespace, error=str(error))
                return
        self._written[ref] = verdict, self._clock.monotonic()

    async def _write(self, ref: OwnerRef, verdict: Verdict) -> None:
        # What the watch shows saves a call, and may be behind: a conflict says so, and is worth one look and one more
        # try.
        seen = self._owners.seen(ref)
        try:
            await self._patch(ref, verdict, seen or await self._owners.look(ref, fresh=True))
        except ApiError as error:
            if error.status != 409 or seen is None:
                raise
            await self._patch(ref, verdict, await self._owners.look(ref, fresh=True))

    async def _patch(self, ref: OwnerRef, verdict: Verdict, found: Json | None) -> None:
        kind = kind_of(ref)
        if found is None or kind is None:
            return
        patch = placed_patch(found, kind, verdict, format_time(self._clock.now_ms()))
        if patch is not None:
            version = text(found, "apiVersion") or ref.api_version
            await self._cluster.patch_status(version, ref.kind, ref.namespace, ref.name, patch)
