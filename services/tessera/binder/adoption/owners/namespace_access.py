"""Rights of the binder in namespaces: the API server is asked, and its answer holds for a while."""

import asyncio

import structlog

from tessera.binder.bounded import BoundedDict
from tessera.kernel.ports import ApiError, Clock, Cluster

OPEN_SECONDS, CLOSED_SECONDS = 300.0, 10.0
REMEMBERED = 4096

log = structlog.get_logger()


class NamespaceAccess:
    """
    One right, of which a refused call is noted, too. The right to bind: a namespace without it is not let in, whatever
    else the binder may do there.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        right: tuple[str, str, str] = ("create", "pods/binding", ""),
        trusted_seconds: float = OPEN_SECONDS,
    ) -> None:
        self._cluster, self._clock, self._right, self._trusted = cluster, clock, right, trusted_seconds
        self._answers: BoundedDict[str, tuple[bool, float]] = BoundedDict(REMEMBERED)
        self._asking = asyncio.Lock()

    async def is_granted(self, namespace: str) -> bool:
        """Raises Transient. A server that cannot say lets us in: then a call tells."""
        known = self._cached(namespace)
        if known is not None:
            return known
        # One question at a time: a thousand groups of one namespace would else ask the same at once.
        async with self._asking:
            known = self._cached(namespace)  # somebody else may have asked meanwhile
            return await self._ask(namespace) if known is None else known

    def note_refusal(self, namespace: str) -> None:
        """A call was refused: believed for longer than an answer, since the server may say yes and refuse again."""
        self._answers[namespace] = False, self._clock.monotonic() + OPEN_SECONDS

    def _cached(self, namespace: str) -> bool | None:
        found, until = self._answers.get(namespace, (False, 0.0))
        return found if self._clock.monotonic() < until else None

    async def _ask(self, namespace: str) -> bool:
        try:
            may = await self._cluster.may(namespace, *self._right)
        except ApiError as error:
            log.info("rights_not_known", namespace=namespace, error=str(error))
            may = True
        before = self._answers.get(namespace, (True, 0.0))[0]
        if before and not may:
            log.warning("namespace_not_let_in", namespace=namespace, right=" ".join(self._right[:2]))
        # A yes holds for long, since a call tells when it is over; a no only shortly, since nothing else would tell
        # when it ends.
        self._answers[namespace] = may, self._clock.monotonic() + (self._trusted if may else CLOSED_SECONDS)
        return may
