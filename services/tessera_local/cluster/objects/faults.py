"""Faults to order: the next calls of a verb are refused, or their answer is lost with or without its effect."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.answers import REASONS, AnswerLost, forbidden
from tessera_local.cluster.objects.budgets import FORBIDDEN

VERBS = ("list", "watch", "get", "log", "create", "bind", "delete", "patch", "evict")


@dataclass(slots=True)
class _Fault:
    remaining: int
    error: ApiError | None
    after_effect: bool = False

    def raise_it(self, verb: str) -> None:
        self.remaining -= 1
        if self.error is not None:
            raise self.error
        raise AnswerLost(f"the answer of a {verb} was lost")


class Faults:
    """Ordered per verb: the oldest order is used up first."""

    def __init__(self) -> None:
        self._ordered: dict[str, list[_Fault]] = {}
        self._forbidden: dict[str, None] = {}
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls made inside meet no faults and use none up: the world's own, not those of who is being tried."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def answer(self, verb: str, status: int, count: int = 1, retry_after_seconds: float | None = None) -> None:
        """Refuse the next `count` calls of `verb` with an HTTP status; nothing happens. 429 waits 1 s by default."""
        if status == 429 and retry_after_seconds is None and verb != "evict":
            retry_after_seconds = 1
        message = FORBIDDEN if (verb, status) == ("evict", 429) else "fault ordered by the test"
        self._order(verb, _Fault(count, ApiError(status, REASONS.get(status, ""), message, retry_after_seconds)))

    def lose_answers(self, verb: str, count: int = 1, after_effect: bool = True) -> None:
        """Break the connection of the next `count` calls of `verb`, after their effect or instead of it."""
        self._order(verb, _Fault(count, None, after_effect))

    def forbid_creates(self, namespace: str, on: bool = True) -> None:
        """Refuse all new pods of a namespace with 403, as a ResourceQuota that is used up does, or no longer."""
        self._forbidden.pop(namespace, None)
        if on:
            self._forbidden[namespace] = None

    def check_create(self, resource: str, namespace: str, name: str) -> None:
        """Raise ApiError 403 where new pods are forbidden."""
        if resource == "pods" and namespace in self._forbidden and not self._is_paused:
            spent = "exceeded quota: compute-resources, requested: pods=1, used: pods=10, limited: pods=10"
            raise forbidden(f'pods "{name}" is forbidden: {spent}')

    def clear(self) -> None:
        """Drop all orders of all verbs, also half used ones; nothing is forbidden any more."""
        self._ordered.clear()
        self._forbidden.clear()

    def before(self, verb: str) -> None:
        """Raises what was ordered instead of the effect of this call."""
        fault = self._next(verb)
        if fault is not None and not fault.after_effect:
            fault.raise_it(verb)

    def after(self, verb: str) -> None:
        """Raises what was ordered for after the effect of this call."""
        fault = self._next(verb)
        if fault is not None and fault.after_effect:
            fault.raise_it(verb)

    def _order(self, verb: str, fault: _Fault) -> None:
        if verb not in VERBS:
            raise ValueError(f"no verb {verb!r}; there are {', '.join(VERBS)}")
        self._ordered.setdefault(verb, []).append(fault)

    def _next(self, verb: str) -> _Fault | None:
        if not self._ordered or self._is_paused:
            return None
        waiting = self._ordered.get(verb, [])
        while waiting and waiting[0].remaining <= 0:
            waiting.pop(0)
        return waiting[0] if waiting else None
