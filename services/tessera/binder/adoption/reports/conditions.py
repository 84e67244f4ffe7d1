"""
Conditions and events for `kubectl describe`: one of each per pod, written when the code changes.

The last one is read from the pod itself, so that a restart repeats nothing.
"""

from collections.abc import Sequence

import structlog

from tessera.binder.adoption.decide.verdicts import Verdict, condition_patch, describe_wishes, make_event, wishes_patch
from tessera.binder.bounded import BoundedDict
from tessera.binder.pods.calls import all_of
from tessera.binder.workloads.reading import format_time, mapping, text
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.base import Json

PASSES = (404, 409)
REMEMBERED = 4096
CLOSED_SECONDS = 10.0

log = structlog.get_logger()


class Conditions:
    """A pod that is gone or changed meanwhile is passed over: its next change leads here again."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._made: BoundedDict[tuple[str, str], None] = BoundedDict(REMEMBERED)
        self._closed_until: dict[str, float] = {}

    async def write(self, pods: Sequence[Json], verdict: Verdict | None) -> int:
        """Write on each pod why it waits, unless its condition says so already; how many were written."""
        if verdict is None:
            return 0
        return sum(await all_of([self._write_one(pod, verdict) for pod in pods]))

    async def renew(self, pods: Sequence[Json], verdict: Verdict) -> int:
        """Bring the numbers of what the pods say up to date, without an event; how many were written."""
        now = self._now()
        written = await all_of([self._patch(pod, condition_patch(pod, verdict, now, renewed=True)) for pod in pods])
        return sum(written)

    async def write_wishes(self, pods: Sequence[Json], sentences: Sequence[str]) -> None:
        """Write on each pod, and in one event, which of its settings are not honoured; before the pods are placed."""
        if not sentences or not pods:
            return
        verdict, now = describe_wishes(sentences), self._now()
        written = await all_of([self._patch(pod, wishes_patch(pod, verdict, now)) for pod in pods])
        if any(written):
            await self._make_event(pods[0], verdict, now)

    async def make_event_once(self, thing: Json, verdict: Verdict) -> None:
        """An event alone, once for each code: about what has no condition of ours, such as a pod that runs."""
        key = text(thing, "metadata", "uid"), verdict.code
        # Noted before the call, and not again after a failure: an event is worth one try.
        if key in self._made:
            return
        self._made[key] = None
        await self._make_event(thing, verdict, self._now())

    async def _write_one(self, pod: Json, verdict: Verdict) -> bool:
        now = self._now()
        if not await self._patch(pod, condition_patch(pod, verdict, now)):
            return False
        meta = mapping(pod, "metadata")
        log.info("pod_told", pod=text(meta, "name"), namespace=text(meta, "namespace"), reason=verdict.code)
        await self._make_event(pod, verdict, now)
        return True

    async def _patch(self, pod: Json, patch: Json | None) -> bool:
        """Whether it was written: there is something to say, and the pod is as we have seen it."""
        meta = mapping(pod, "metadata")
        if patch is None or self._clock.monotonic() < self._closed_until.get(text(meta, "namespace"), 0.0):
            return False
        # Held to what was seen: a late write must not put an old reason over the kubelet's own words.
        named = {"uid": text(meta, "uid"), "resourceVersion": text(meta, "resourceVersion")}
        try:
            await self._cluster.patch_pod_status(
                text(meta, "namespace"), text(meta, "name"), {"metadata": named, **patch}
            )
        except ApiError as error:
            if error.status == 403:
                self._note_closed_namespace(text(meta, "namespace"), error)
            elif error.status not in PASSES:
                raise
            return False
        return True

    def _note_closed_namespace(self, namespace: str, error: ApiError) -> None:
        """
        Log that the namespace's pods cannot be written to (`tessera doctor` shows it, too); tried again after a while.
        """
        if namespace not in self._closed_until:
            log.warning("pods_not_told", namespace=namespace, error=str(error))
        self._closed_until[namespace] = self._clock.monotonic() + CLOSED_SECONDS

    async def _make_event(self, thing: Json, verdict: Verdict, now: str) -> None:
        """The condition says it already: an event that cannot be made is not worth another try."""
        try:
            await self._cluster.create_event(text(thing, "metadata", "namespace"), make_event(thing, verdict, now))
        except ApiError as error:
            if error.status != 409:
                log.warning("event_not_made", error=str(error))

    def _now(self) -> str:
        return format_time(self._clock.now_ms())
