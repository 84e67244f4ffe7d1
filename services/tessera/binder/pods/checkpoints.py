"""Reports of programs on their pods, as facts: checkpoints, and that nobody uses a session."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from tessera.binder.decide.steps import Pod, is_new_checkpoint, is_path
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.facts import CheckpointSaved
from tessera_schemas.shard.ledger_form import SESSION_WARNINGS_FROM
from tessera_schemas.shard.records import SessionUnused

REMEMBERED = 64

log = structlog.get_logger()


class Checkpoints:
    """
    Publishes each checkpoint once, of one run at most one per `checkpoint_seconds`, however often its program writes.

    The checkpoint of a run that is being stopped is published at once and ends its notice. One that was shown before
    and waited is older than the notice, by less than `checkpoint_seconds`, and is left out.
    """

    def __init__(self, facts: Facts, settings: BinderSettings, state: State, clock: Clock, worklist: Worklist) -> None:
        self._facts, self._settings, self._state = facts, settings, state
        self._clock, self._worklist = clock, worklist
        self._by_run: dict[str, _RunCheckpoints] = {}

    def forget(self, run_id: str) -> None:
        """Forgets the published checkpoints of a run that is no more."""
        self._by_run.pop(run_id, None)

    async def report(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Publishes new checkpoints that a started run's permitted pods show; some wait for their turn."""
        job = self._state.jobs.get(run.job_id)
        if job is None or not run.started or run.over:
            return
        book = self._by_run.setdefault(run.run_id, _RunCheckpoints())
        for uid in run.permitted:
            pod = pods.get(uid)
            if pod is None or not pod.saved or book.shown.get(uid) == (pod.saved, pod.saved_at):
                continue
            if not is_path(pod.saved):
                log.warning("checkpoint_not_read", run=run.run_id, pod=pod.name, characters=len(pod.saved))
            elif is_new_checkpoint(run, job.saved_path, pod, book.shown.get(uid)) and not book.has_published(pod, pods):
                if run.revoked is None and self._has_to_wait(run, book):
                    book.wait(pod)
                    continue
                if book.waits.get(uid) != (pod.saved, pod.saved_at) or run.revoked is None:
                    await self._publish(run, pod, book)
            book.shown[uid] = pod.saved, pod.saved_at

    def _has_to_wait(self, run: Run, book: "_RunCheckpoints") -> bool:
        if book.published_at is None:
            return False
        wait = book.published_at + self._settings.checkpoint_seconds - self._clock.monotonic()
        if wait > 0:
            self._worklist.name_later(run.run_id, wait)
        return wait > 0

    async def _publish(self, run: Run, pod: Pod, book: "_RunCheckpoints") -> None:
        fact = CheckpointSaved(kind="checkpoint_saved", run_id=run.run_id, path=pod.saved, at=pod.checkpoint_at)
        await self._facts.publish(fact)
        book.published_at = self._clock.monotonic()
        book.note(pod)


@dataclass(slots=True)
class _RunCheckpoints:
    """
    Checkpoints of one run: shown by each pod at the last look, waiting to be published, and published (the last when).

    `first` is the pod that reported a path first.
    """

    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    waits: dict[str, tuple[str, str]] = field(default_factory=dict)
    published: dict[tuple[str, str], None] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    published_at: float | None = None

    def wait(self, pod: Pod) -> None:
        """Note the checkpoint that the pod shows; the one shown before is never reported again."""
        before = self.waits.get(pod.uid)
        if before is not None and before != (pod.saved, pod.saved_at):
            self.published[before] = None
        self.waits[pod.uid] = pod.saved, pod.saved_at

    def note(self, pod: Pod) -> None:
        """Note a published checkpoint: those that waited are no newer."""
        self.published |= dict.fromkeys([*self.waits.values(), (pod.saved, pod.saved_at)])
        self.waits.clear()
        self.first.setdefault(pod.saved, pod.uid)
        while len(self.published) > REMEMBERED:
            del self.published[next(iter(self.published))]
        while len(self.first) > REMEMBERED:
            del self.first[next(iter(self.first))]

    def has_published(self, pod: Pod, pods: Mapping[str, Pod]) -> bool:
        """
        Tell whether the checkpoint was published, perhaps for another pod: each rank may write a time of its own
        beside a path and means the same checkpoint. The pod that reported the path first decides while it is there.
        """
        speaker = pods.get(self.first.get(pod.saved, ""))
        another = speaker is not None and not speaker.over and speaker.uid != pod.uid
        return another or (pod.saved, pod.saved_at) in self.published


class SessionWarnings:
    """Publishes each change once; what was published is remembered until the ledger has it, only to save messages."""

    def __init__(self, facts: Facts, state: State) -> None:
        self._facts, self._state = facts, state
        self._said: dict[str, bool] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was said of a run."""
        self._said.pop(run_id, None)

    async def report(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Publish that the pod of a started session warns of idleness, or does no more, where that is news."""
        is_watched = job.session is not None and bool(job.session.idle_seconds)
        if not is_watched or not run.started or run.over or self._state.format < SESSION_WARNINGS_FROM:
            return
        pod = next((pod for uid in run.permitted if (pod := pods.get(uid)) is not None), None)
        if pod is None or pod.over or pod.warns == bool(run.unused_until):
            self._said.pop(run.run_id, None)
        elif self._said.get(run.run_id) != pod.warns:
            await self._facts.publish(SessionUnused(kind="session_unused", run_id=run.run_id, again=not pod.warns))
            self._said[run.run_id] = pod.warns
