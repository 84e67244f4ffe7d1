"""
A kept copy of all pods, nodes or other objects: list once, then watch; whatever breaks, the copy is made right again.

Out come batches of deltas, in the server's order for each object. A watch that ends goes on where it stopped; when
the server no longer knows that place (410) or refuses, everything is listed again and the differences come out as
deltas, deletions first. So nothing is missed, and an object that came and went in between is never seen at all.

What of an object cannot be read is put aside and told (`objects`): no object ends the service that watches it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.objects import readable
from tessera.kernel.ports import ApiError, Clock, Cluster, Reduce, WatchEvent, without_managed_fields
from tessera.kernel.tasks.task_group import cancel_all
from tessera.kernel.tasks.waiting import spread
from tessera_schemas.base import Json

_QUEUE_BOUND = 4096  # changes read and not yet taken; then reading waits for the consumer
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 10.0
_TOLD = 4096

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of one object (by UID). `object` is the last that was seen of it; `old` what the copy held before."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json
    old: Json | None


class Informer:
    """
    The copy as of the last batch handed out: `objects` by UID, `named` by name.

    `synced` is False until the first list has been handed out whole; `is_absent` while the server has no such kind. Of
    each object only what `reduce` makes of it is kept, which has its name, UID and resourceVersion.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        clock: Clock,
        label_selector: str = "",
        field_selector: str = "",
        reduce: Reduce = without_managed_fields,
        who: str = "",
        longest_retry_seconds: float = _LONGEST_RETRY_SECONDS,
    ) -> None:
        """`who` is the process: replicas that lose the server at the same moment do not come back at the same one."""
        self._longest_retry_seconds = longest_retry_seconds
        self._cluster, self._kind, self._clock, self._reduce, self._who = cluster, kind, clock, reduce, who
        self._selectors = (label_selector, field_selector)
        self.objects: dict[str, Json] = {}
        self.synced = self.is_absent = False
        self._names: dict[str, str] = {}
        self._told: dict[str, list[str]] = {}
        self._read: deque[list[Json] | WatchEvent] = deque()  # a whole list, or one change
        self._deltas: deque[Delta] = deque()
        self._version = ""  # where the watch goes on; "" means by listing
        self._listed_once = False
        self._failures = 0
        self._grown, self._shrunk = asyncio.Event(), asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    def named(self, name: str, namespace: str = "") -> Json | None:
        """Object of that name in the copy; None without one. `namespace` is "" for objects of no namespace."""
        return self.objects.get(self._names.get(f"{namespace}/{name}", ""))

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Delta]:
        """
        Up to `limit` deltas, which the copy then holds; [] after `timeout` seconds, or when what was read changes
        nothing (an empty list, say).

        Raises what broke the reader for good; no answer of the server and no lost connection does.
        """
        if self._reader is None:
            self._reader = asyncio.create_task(self._keep_reading())
            self._reader.add_done_callback(lambda _: self._grown.set())
        if not self._read and not self._deltas:
            await self._wait_for_more(timeout)
        batch: list[Delta] = []
        while len(batch) < limit and (delta := self._next_delta()) is not None:
            self._hold(delta)
            batch.append(delta)
        if not self._deltas and self._listed_once:
            self.synced = True
        return batch

    async def close(self) -> None:
        """Stop reading from the server; the copy stays as last handed out."""
        if self._reader is not None:
            await cancel_all(self._reader)
            self._reader = None

    # -- the copy -------------------------------------------------------------------------------------------------

    def _next_delta(self) -> Delta | None:
        while not self._deltas and self._read:
            self._compare(self._read.popleft())
            self._shrunk.set()
        return self._deltas.popleft() if self._deltas else None

    def _compare(self, read: list[Json] | WatchEvent) -> None:
        """Turn what was read into differences from the copy as it will be once earlier ones are handed out."""
        if isinstance(read, WatchEvent):
            self._compare_one(read.type, read.object)
            return
        self._listed_once = True
        there = {item["metadata"]["uid"] for item in read}
        for uid, old in self.objects.items():
            if uid not in there:
                self._deltas.append(Delta("DELETED", old, old))
        for item in read:
            self._compare_one("ADDED", item)

    def _compare_one(self, change: str, new: Json) -> None:
        old = self.objects.get(new["metadata"]["uid"])
        if change == "DELETED":
            if old is not None:
                self._deltas.append(Delta("DELETED", new, old))
        elif old is None:
            self._deltas.append(Delta("ADDED", new, None))
        elif old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]:
            self._deltas.append(Delta("MODIFIED", new, old))

    def _hold(self, delta: Delta) -> None:
        meta = delta.object["metadata"]
        uid, name = meta["uid"], f"{meta.get('namespace', '')}/{meta['name']}"
        if delta.type != "DELETED":
            self.objects[uid], self._names[name] = delta.object, uid
            return
        del self.objects[uid]
        if self._names.get(name) == uid:  # else a new object has the name already
            del self._names[name]

    async def _wait_for_more(self, timeout: float | None) -> None:
        self._grown.clear()
        assert self._reader is not None
        if not self._reader.done():
            await _happens(self._grown, self._clock, timeout)
        if self._reader.done():
            self._reader.result()

    # -- the reader -----------------------------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Transient:
                await self._back_off()
            except ApiError as error:
                self._version, self.is_absent = "", error.status == 404
                await self._back_off(error.retry_after_seconds, at_once=error.status == 410)
            else:
                await self._back_off(at_once=True)  # servers end watches now and then

    async def _list(self) -> None:
        items, version = await self._cluster.list(self._kind, *self._selectors, self._readable)
        self.is_absent = False
        self._put([item for item in items if item])
        self._version = version

    async def _watch(self) -> None:
        events = self._cluster.watch(self._kind, self._version, *self._selectors)
        try:
            async for event in events:
                self._failures = 0
                meta = event.object.get("metadata") or {}
                if event.type != "BOOKMARK" and (found := self._readable(event.object)):
                    await self._room()
                    self._put(WatchEvent(event.type, found))
                self._version = meta.get("resourceVersion") or self._version
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    def _readable(self, thing: Json) -> Json:
        """The object as it is kept; {} for what cannot be told from others."""
        found, odd = readable(thing)
        if odd or self._told:
            self._report(found.get("metadata", {}), odd)
        return self._reduce(found) if found else {}

    def _report(self, meta: Json, odd: list[str]) -> None:
        """Told once for an object, and again when it is something else of it."""
        uid, before = meta.get("uid", ""), self._told.pop(meta.get("uid", ""), [])
        if not odd:
            return
        if odd != before:
            name, namespace = meta.get("name", ""), meta.get("namespace", "")
            log.warning("object_not_readable", kind=self._kind, name=name, namespace=namespace, fields=odd)
        if len(self._told) >= _TOLD:
            self._told.clear()
        self._told[uid] = odd

    def _put(self, read: list[Json] | WatchEvent) -> None:
        self._read.append(read)
        self._grown.set()

    async def _room(self) -> None:
        while len(self._read) >= _QUEUE_BOUND:
            self._shrunk.clear()
            await self._shrunk.wait()

    async def _back_off(self, at_least: float | None = None, at_once: bool = False) -> None:
        """Twice as long each time nothing came of it; `at_once` lets the first time pass without a wait."""
        self._failures += 1
        if at_once and self._failures == 1:
            return
        wait = min(_FIRST_RETRY_SECONDS * 2 ** min(self._failures - 1, 16), self._longest_retry_seconds)
        wait = max(wait, at_least or 0.0)
        await self._clock.sleep(spread(wait, self._who, self._kind, self._failures) if self._who else wait)


async def _happens(event: asyncio.Event, clock: Clock, timeout: float | None) -> None:
    """Wait for the event, at most `timeout` seconds of the clock."""
    if timeout is None:
        await event.wait()
        return
    waits = (asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(timeout)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
