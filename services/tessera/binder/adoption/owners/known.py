"""
The objects that own users' pods, as the API has them: looked up, remembered for a while, and whether they have ended.

Kinds that can be suspended come from watches; all others are fetched.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tessera.binder.adoption.decide.suspending import Look, can_be_suspended, look_at, suspension
from tessera.binder.adoption.owners.namespace_access import CLOSED_SECONDS, NamespaceAccess
from tessera.binder.adoption.owners.watches import OwnerWatches
from tessera.binder.bounded import BoundedDict
from tessera.binder.decide.warnings import read_refused_pods
from tessera.binder.workloads.port import MEMBERS
from tessera.binder.workloads.reading import no, text
from tessera.binder.workloads.references import OwnerRef, controller_of, is_it, ref_of
from tessera.binder.workloads.registry import VERSIONS, hands_down, kind_of
from tessera.domain.entities import Job
from tessera.kernel.kubernetes.api_paths import resource_of
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Adopted

REMEMBERED_SECONDS = 15.0
MEMBERS_SECONDS = 1.0
"""Of an object that is read with the others of its namespace: they are made one after the other."""
EVENTS_SECONDS, EVENTS_PAUSE_SECONDS = 2.0, 0.2
"""So long an owner's events are believed, and so long lies between two questions for those of any."""
REMEMBERED = 4096

log = structlog.get_logger()


class NotAllowed(ApiError):
    """The binder has not the right to read such an object; the `why` is for people and says which right."""

    def __init__(self, ref: OwnerRef, error: ApiError, verb: str = "get") -> None:
        super().__init__(error.status, error.reason, error.message, error.retry_after_seconds)
        resource = f"{resource_of(ref.kind)}.{ref.group}".removesuffix(".")
        self.why = no(Code.FORBIDDEN, f"{ref.kind} {ref.namespace}/{ref.name}", f"the binder may not {verb} {resource}")


class Owners:
    """
    Looks in the watches' copies first; what is not there yet may still be there at the API. `by_queue` is
    what a queue says about owners whose jobs wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        watches: OwnerWatches,
        by_queue: Callable[[str], bool | None] = lambda _: None,
    ) -> None:
        self._cluster, self._clock, self._watches, self.by_queue = cluster, clock, watches, by_queue
        self._found: BoundedDict[OwnerRef, tuple[float, Json | None]] = BoundedDict(REMEMBERED)
        self._gone: BoundedDict[str, Json] = BoundedDict(REMEMBERED)
        self._lists: BoundedDict[tuple[str, str], tuple[float, Sequence[Json]]] = BoundedDict(REMEMBERED)
        self._listing = asyncio.Lock()
        self._served = ""
        self._refused: BoundedDict[str, tuple[float, int, str]] = BoundedDict(REMEMBERED)
        self._events_from = 0.0
        self._suspending: dict[tuple[str, str], NamespaceAccess] = {}

    async def look(self, ref: OwnerRef, fresh: bool = False) -> Json | None:
        """The object, None when there is none of that name. Raises NotAllowed, ApiError, Transient."""
        watched = None if fresh else self.seen(ref)
        if watched is not None:
            return watched
        now, members = self._clock.monotonic(), () if (kind := kind_of(ref)) is None else kind.members
        # Also that there is no such object is remembered, or each pod of a missing owner would ask for it again.
        known = self._found.get(ref)
        if known is not None and not fresh and now - known[0] < (MEMBERS_SECONDS if members else REMEMBERED_SECONDS):
            return known[1]
        found = await self._fetch(ref)
        if found is not None and members:
            found = {**found, MEMBERS: {kind: await self._all_in(ref, api, kind) for api, kind in members}}
        self._found[ref] = now, found
        return found

    def seen(self, ref: OwnerRef) -> Json | None:
        """The object as a watch showed it last, without a call; None where nobody watches it, or it is another."""
        found = self._watches.named(ref)
        return found if found is not None and is_it(ref, found) else None

    async def of(self, namespace: str, adopted: Adopted, fresh: bool = False) -> Json | None:
        """
        The owner of an adopted job; None when it is gone, even if another object has its name by now.

        {} without the right to read it: it says nothing, and may make its pods again.
        """
        ref = OwnerRef(adopted.api_version, adopted.owner_kind, namespace, adopted.owner_name, adopted.owner_uid)
        try:
            found = await self.look(ref, fresh)
        except NotAllowed:
            # Raised, it would be tried again for ever, and the GPUs of pods that are gone held as long.
            return {}
        if found is not None and adopted.owner_uid and text(found, "metadata", "uid") != adopted.owner_uid:
            # Another object under the name may be what was remembered, so that one fresh look decides.
            found = None if fresh else await self.of(namespace, adopted, fresh=True)
        return found

    async def why_refused(self, ref: OwnerRef, since_ms: int) -> str:
        """
        Why the namespace has not taken a pod of the owner since then, as its controller says in its events; "" where it
        does not say, or we may not read it.
        """
        now, known = self._clock.monotonic(), self._refused.get(ref.uid, (float("-inf"), 0, ""))
        # A server may look through all events of a namespace for each answer, hence the pause between any two.
        if now >= max(known[0] + EVENTS_SECONDS, self._events_from):
            self._events_from = now + EVENTS_PAUSE_SECONDS
            try:
                events = await self._cluster.list_events(ref.namespace, ref.uid)
            except ApiError as error:
                if error.status != 403:
                    raise
                events = []
            known = self._refused[ref.uid] = now, *read_refused_pods(events)
        return known[2] if known[1] >= since_ms else ""

    def note_gone(self, owner: Json) -> None:
        """Keep what was last seen of an object that is no more, for `last_word`."""
        self._gone[text(owner, "metadata", "uid")] = owner

    async def last_word(self, adopted: Adopted, owner: Json | None) -> Json:
        """
        The object that says how an owner, None if it is gone, has ended; {} where nobody knows.

        Ray's jobs say that of the clusters which they make and take away.
        """
        found = owner or self._gone.get(adopted.owner_uid, {})
        above = controller_of(found)
        if above is None or (above.group, above.kind) != ("ray.io", "RayJob"):
            return found
        try:
            return await self.look(above, fresh=owner is None) or {}
        except NotAllowed:
            return found

    def watches(self, job: Job) -> bool:
        """Whether changes of the job's owner come by themselves."""
        return job.adopted is not None and self._watches.are_seen(job.adopted.api_version, job.adopted.owner_kind)

    async def suspension_of(self, job: Job, fresh: bool = False) -> tuple[Json, Look] | None:
        """
        The object that suspends the owner of an adopted job, mostly the owner itself, and who has the next word about
        it; None where nothing says that.
        """
        if job.adopted is None or not can_be_suspended(job.adopted):
            return None
        owner = await self.of(job.tenant, job.adopted, fresh)
        resumed = await self.suspended_by(owner, fresh) if owner else None
        if resumed is None:
            return None
        return resumed, look_at(resumed, job.adopted.suspended, self.by_queue(job.queue))

    async def suspended_by(self, owner: Json, fresh: bool = False) -> Json | None:
        """
        The object whose field suspends an owner: itself, or the one above that hands its own suspension down; None
        where that one is gone, or we may not read it.
        """
        maker = controller_of(owner)
        if maker is None or not hands_down(maker):
            return owner
        try:
            return await self.look(maker, fresh)
        except NotAllowed:
            return None

    async def suspend(self, owner: Json, suspend: bool) -> None:
        """Suspend exactly this version of the owner, or resume it. Watched ones follow, others are fetched anew."""
        ref, wanted = ref_of(owner), suspension(owner, suspend)
        try:
            await self._cluster.patch_object(ref.api_version, ref.kind, ref.namespace, ref.name, wanted)
        except ApiError as error:
            # A server may say yes when asked and refuse all the same, as by an admission rule: the refusal counts.
            if error.status == 403:
                self._access_to(ref).note_refusal(ref.namespace)
            raise
        self._found.pop(ref, None)

    async def try_to_suspend(self, owner: Json, **about: str) -> bool:
        """Suspend it and log that; False where the API server does not let us, or where it is gone."""
        ref = ref_of(owner)
        try:
            await self.suspend(owner, True)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            log.warning("owner_not_suspended", owner=f"{ref.kind}/{ref.name}", error=error.message, **about)
            return False
        log.info("owner_suspended", owner=f"{ref.kind}/{ref.name}", namespace=ref.namespace, **about)
        return True

    async def may_suspend(self, ref: OwnerRef) -> bool:
        """Whether the API server lets us suspend such an owner. Raises Transient."""
        return await self._access_to(ref).is_granted(ref.namespace)

    def _access_to(self, ref: OwnerRef) -> NamespaceAccess:
        resource = resource_of(ref.kind), ref.group
        if resource not in self._suspending:
            # Trusted for a moment alone: what is submitted by a right that is gone by then is evicted in place.
            right = "patch", *resource
            self._suspending[resource] = NamespaceAccess(self._cluster, self._clock, right, CLOSED_SECONDS)
        return self._suspending[resource]

    async def all_of(
        self, kind: str, age: float = REMEMBERED_SECONDS, where_allowed: bool = False, namespace: str = ""
    ) -> Sequence[Json]:
        """
        All of a kind in the cluster or a namespace, at most `age` seconds old; `where_allowed`: none without the right
        to list.
        """
        asked, where = self._clock.monotonic(), (kind, namespace)
        selected = f"metadata.namespace={namespace}" if namespace else ""
        # One list at a time: many groups are looked at side by side, and all of them ask when it is too old.
        async with self._listing:
            now, known = self._clock.monotonic(), self._lists.get(where)
            if known is None or known[0] < asked - age:
                try:
                    known = self._lists[where] = now, (await self._cluster.list(kind, field_selector=selected))[0]
                except ApiError as error:
                    if error.status != 403 or not where_allowed:
                        raise
                    known = self._lists[where] = now, ()
            return known[1]

    async def _all_in(self, ref: OwnerRef, api_version: str, kind: str) -> Sequence[Json]:
        """All of a kind in the namespace of an object, in the version that the server has."""
        for version in VERSIONS.get(api_version, (api_version,)):
            try:
                return await self.all_of(f"{version}/{kind}", MEMBERS_SECONDS, namespace=ref.namespace)
            except ApiError as error:
                if error.status == 403:
                    raise NotAllowed(OwnerRef(version, kind, ref.namespace, "*"), error, "list") from error
                if error.status != 404:
                    raise
        return ()

    async def _fetch(self, ref: OwnerRef) -> Json | None:
        if not ref.api_version or not ref.kind.isalnum() or not ref.name:
            return None
        versions = VERSIONS.get(ref.api_version, (ref.api_version,))
        # The version that answered last goes first: of two that a cluster may serve the other one costs a call in vain
        # each time.
        for version in sorted(versions, key=lambda version: version != self._served):
            try:
                found = await self._cluster.get_object(version, ref.kind, ref.namespace, ref.name)
            except ApiError as error:
                if error.status == 403:
                    raise NotAllowed(ref, error) from error
                if error.status != 404:
                    raise
                continue
            self._served = version if len(versions) > 1 else self._served
            return found
        return None
