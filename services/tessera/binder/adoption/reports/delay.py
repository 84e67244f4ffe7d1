"""Delay before pods show why they wait or show another reason, and before a gang of undeclared size counts as whole."""

from collections.abc import Sequence

from tessera.binder.adoption.decide.verdicts import Verdict
from tessera.binder.workloads.reading import text
from tessera.kernel.ports import Clock
from tessera_schemas.base import Json

BETWEEN_WRITES_SECONDS = 1.0


class ReportDelay:
    """
    Seconds before a group's reason is shown; showing it costs two writes per pod, as much as placing it.

    Warnings are shown at once. The delay runs from when a group is first found waiting until it is forgotten; a binder
    that was restarted counts anew, and reads from the pods what they show already.

    What was written on a group stays for a second at least, warnings included: two binders of which one is behind with
    the ledger see different reasons, and each would answer the other's write as fast as the API server takes it.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._since: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def left(self, group_id: str, verdict: Verdict | None) -> float:
        """Seconds until this verdict may be shown; 0 is now."""
        if verdict is None:
            self.forget(group_id)
            return 0.0
        now = self._clock.monotonic()
        due = self._written.get(group_id, -BETWEEN_WRITES_SECONDS) + BETWEEN_WRITES_SECONDS
        if not verdict.warning:
            due = max(due, self._since.setdefault(group_id, now) + self._seconds)
        return max(0.0, due - now)

    def note_written(self, group_id: str) -> None:
        """Note that pods of the group were given another reason just now."""
        self._written[group_id] = self._clock.monotonic()

    def forget(self, group_id: str) -> None:
        """Forget a group that does not wait any more."""
        self._since.pop(group_id, None)
        self._written.pop(group_id, None)


class Settling:
    """A gang of undeclared size is whole once its pods have stayed the same for so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._since: dict[str, tuple[frozenset[str], float]] = {}

    def left(self, group_id: str, pods: Sequence[Json]) -> float:
        """Seconds until these are taken for all of it; 0 is now."""
        there, now = frozenset(text(pod, "metadata", "uid") for pod in pods), self._clock.monotonic()
        before = self._since.get(group_id)
        if before is None or before[0] != there:
            before = self._since[group_id] = there, now
        return max(0.0, before[1] + self._seconds - now)

    def forget(self, group_id: str) -> None:
        """Forgets since when the group's pods have stayed the same."""
        self._since.pop(group_id, None)
