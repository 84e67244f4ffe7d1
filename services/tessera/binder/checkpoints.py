"""Checkpoints that programs report on their pods, as facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from tessera.binder.decide.steps import Pod, is_new_checkpoint, is_path
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.facts import CheckpointSaved

REMEMBERED = 64

log = structlog.get_logger()


class Checkpoints:
    """
    Says each checkpoint once, and of one run at most one per `checkpoint_seconds`, however often its program writes.

    A run that is being stopped waits for nothing: its checkpoint ends its notice. One that was shown before and waited
    to be said does not: it is older than the notice, by less than `checkpoint_seconds`, and is left out.
    """

    def __init__(self, facts: Facts, settings: BinderSettings, state: State, clock: Clock, worklist: Worklist) -> None:
        self._facts, self._settings, self._state = facts, settings, state
        self._clock, self._worklist = clock, worklist
        self._by_run: dict[str, _RunCheckpoints] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was said of a run's checkpoints, as of a run that is no more."""
        self._by_run.pop(run_id, None)

    async def report(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Says the new checkpoints that a started run's permitted pods show; pods whose turn is later wait."""
        job = self._state.jobs.get(run.job_id)
        if job is None or not run.started or run.over:
            return
        book = self._by_run.setdefault(run.run_id, _RunCheckpoints())
        for uid in run.permitted:
            pod = pods.get(uid)
            if pod is None or not pod.saved or book.told.get(uid) == (pod.saved, pod.saved_at):
                continue
            if not is_path(pod.saved):
                log.warning("checkpoint_not_read", run=run.run_id, pod=pod.name, characters=len(pod.saved))
            elif is_new_checkpoint(run, job.saved_path, pod, book.told.get(uid)) and not book.has_said(pod, pods):
                if run.revoked is None and self._has_to_wait(run, book):
                    book.wait(pod)
                    continue
                if book.waits.get(uid) != (pod.saved, pod.saved_at) or run.revoked is None:
                    await self._say(run, pod, book)
            book.told[uid] = pod.saved, pod.saved_at

    def _has_to_wait(self, run: Run, book: "_RunCheckpoints") -> bool:
        if book.said_at is None:
            return False
        wait = book.said_at + self._settings.checkpoint_seconds - self._clock.monotonic()
        if wait > 0:
            self._worklist.name_later(run.run_id, wait)
        return wait > 0

    async def _say(self, run: Run, pod: Pod, book: "_RunCheckpoints") -> None:
        fact = CheckpointSaved(kind="checkpoint_saved", run_id=run.run_id, path=pod.saved, at=pod.checkpoint_at)
        await self._facts.publish(fact)
        book.said_at = self._clock.monotonic()
        book.note(pod)


@dataclass(slots=True)
class _RunCheckpoints:
    """
    Checkpoints of one run: shown by each pod at the last look, waiting to be published, and published (the last when).

    `first` is the pod that reported a path first.
    """

    told: dict[str, tuple[str, str]] = field(default_factory=dict)
    waits: dict[str, tuple[str, str]] = field(default_factory=dict)
    said: dict[tuple[str, str], None] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    said_at: float | None = None

    def wait(self, pod: Pod) -> None:
        """Note the checkpoint that the pod shows; the one shown before is never reported again."""
        before = self.waits.get(pod.uid)
        if before is not None and before != (pod.saved, pod.saved_at):
            self.said[before] = None
        self.waits[pod.uid] = pod.saved, pod.saved_at

    def note(self, pod: Pod) -> None:
        """The checkpoint was said: those that waited are no newer."""
        self.said |= dict.fromkeys([*self.waits.values(), (pod.saved, pod.saved_at)])
        self.waits.clear()
        self.first.setdefault(pod.saved, pod.uid)
        while len(self.said) > REMEMBERED:
            del self.said[next(iter(self.said))]
        while len(self.first) > REMEMBERED:
            del self.first[next(iter(self.first))]

    def has_said(self, pod: Pod, pods: Mapping[str, Pod]) -> bool:
        """
        Tell whether the checkpoint was published, perhaps for another pod: each rank may write a time of its own
        beside a path and means the same checkpoint. The pod that reported the path first decides while it is there.
        """
        speaker = pods.get(self.first.get(pod.saved, ""))
        another = speaker is not None and not speaker.over and speaker.uid != pod.uid
        return another or (pod.saved, pod.saved_at) in self.said
