"""What programs say of their checkpoints, on their pods, as facts."""

from collections.abc import Mapping

import structlog

from tessera.binder.decide import Pod, is_new_checkpoint, is_path
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.worklist import Worklist
from tessera_schemas.facts import CheckpointSaved

log = structlog.get_logger()


class Checkpoints:
    """
    Says each checkpoint once, and of one run at most one per `checkpoint_seconds`, however often its program writes.

    A run that is being stopped waits for nothing: its checkpoint ends its notice.
    """

    def __init__(self, facts: Facts, settings: BinderSettings, state: State, clock: Clock, worklist: Worklist) -> None:
        self._facts, self._settings, self._state = facts, settings, state
        self._clock, self._worklist = clock, worklist
        self._told: dict[str, dict[str, tuple[str, str]]] = {}
        self._said_at: dict[str, float] = {}

    def forget(self, run_id: str) -> None:
        self._told.pop(run_id, None)
        self._said_at.pop(run_id, None)

    async def report(self, run: Run, pods: Mapping[str, Pod]) -> None:
        job = self._state.jobs.get(run.job_id)
        if job is None or not run.started or run.over:
            return
        told = self._told.setdefault(run.run_id, {})
        for uid in run.permitted:
            pod = pods.get(uid)
            if pod is None or not pod.saved or told.get(uid) == (pod.saved, pod.saved_at):
                continue
            if is_new_checkpoint(run, job.saved_path, pod, told.get(uid)):
                wait = self._said_at.get(run.run_id, 0.0) + self._settings.checkpoint_seconds - self._clock.monotonic()
                if wait > 0 and run.run_id in self._said_at and run.revoked is None:
                    self._worklist.name_later(run.run_id, wait)
                    return
                fact = CheckpointSaved(kind="checkpoint_saved", run_id=run.run_id, path=pod.saved)
                await self._facts.publish(fact)
                self._said_at[run.run_id] = self._clock.monotonic()
            elif not is_path(pod.saved):
                log.warning("checkpoint_not_read", run=run.run_id, pod=pod.name, characters=len(pod.saved))
            told[uid] = (pod.saved, pod.saved_at)
