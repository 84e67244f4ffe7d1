"""Behaviour of simulated programs, read from their pods' annotations, or from a variable that says how long."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from tessera_local.cluster.machines.capacity import AdmissionError
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SIMULATE_PREFIX, run_and_rank

RUN_SECONDS = f"{SIMULATE_PREFIX}seconds"
RANK_SECONDS = f"{SIMULATE_PREFIX}rank-seconds"
EXIT_CODE = f"{SIMULATE_PREFIX}exit-code"
TERM_MS = f"{SIMULATE_PREFIX}term-ms"
CHECKPOINT_SECONDS = f"{SIMULATE_PREFIX}checkpoint-seconds"
START_SECONDS = f"{SIMULATE_PREFIX}start-seconds"
NOTICE_SECONDS = f"{SIMULATE_PREFIX}notice-seconds"
RESIZE = f"{SIMULATE_PREFIX}resize"
READY_TURNS = f"{SIMULATE_PREFIX}ready-turns"
STEP_SECONDS = f"{SIMULATE_PREFIX}step-seconds"
HANG_STEP = f"{SIMULATE_PREFIX}hang-step"
NEVER = "never"
SECONDS_VARIABLE = "SIMULATE_SECONDS"
"""A variable of the program that says its seconds where no annotation does: Slurm's words know no annotations."""
CHECKPOINT_VARIABLE, ATTEMPT_VARIABLE = "TESSERA_CHECKPOINT_PATH", "TESSERA_ATTEMPT"
_CHECKPOINTS = "/checkpoints/"
KILLED, TERMINATED = 137, 143
_DEFAULT_GRACE_SECONDS = 30
_TEN_YEARS_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a pod's program: phase, the pod's reason (often ""), and the exit code."""

    phase: str
    reason: str
    exit_code: int


OVERDUE = Ending("Failed", "DeadlineExceeded", TERMINATED)
"""A kubelet's end of what has run for its `activeDeadlineSeconds`."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """
    Milliseconds from start to the end that comes by itself, and from SIGTERM to the end that it causes.

    A pod of a higher rank runs longer, if its annotations say so.

    `save_ms` is how often it saves its work, 0 for never; it also does when it is told that it will be stopped.
    `done_ms` is what an earlier attempt had saved: that much is not done again.

    `start_ms` pass before it starts: its init containers run, or where it has none its image is pulled. `notice_ms`
    after it is told that it will be stopped, it ends by itself as it would have; None: it works on. A `term_ms` of None
    is a program that no signal stops, as under a container runtime that hangs. `resizes`: its kubelet can resize it in
    place. `turns_ms` are the times from start at which its probe finds it not ready, ready again, and so on.

    It reports a step every `step_ms`, 0 for never; a job's first run hangs with step `hang_step`, if that is not 0.
    """

    run_ms: int
    ending: Ending
    term_ms: int | None
    save_ms: int = 0
    done_ms: int = 0
    start_ms: int = 0
    notice_ms: int | None = None
    resizes: bool = True
    turns_ms: tuple[int, ...] = ()
    step_ms: int = 0
    hang_step: int = 0

    def steps_after(self, ran_ms: int) -> int:
        """Number of steps that it has done after so much run time."""
        steps = ran_ms // self.step_ms if self.step_ms else 0
        return min(steps, self.hang_step) if self.hang_step else steps

    def path_after(self, ran_ms: int) -> str:
        """Path of the checkpoint after so much run time; the next attempt reads from it how much is done."""
        return f"{_CHECKPOINTS}{self.done_ms + ran_ms}"

    def stopped(self, grace_ms: int) -> tuple[int, Ending] | None:
        """After SIGTERM: how long it still runs, and its end. Out of grace, it is killed. None: it runs on."""
        if self.term_ms is None:
            return None
        code = TERMINATED if self.term_ms <= grace_ms else KILLED
        return min(self.term_ms, grace_ms), Ending("Failed", "", code)


def _variable(pod: Json, name: str) -> str:
    """Value of a variable of the pod's first container, "" where it has none."""
    env = pod["spec"]["containers"][0].get("env") or () if pod["spec"].get("containers") else ()
    return next((str(each.get("value", "")) for each in env if each["name"] == name), "")


def behaviour_of(pod: Json) -> Behaviour:
    """Raises AdmissionError for annotations that cannot be read."""
    notes = pod["metadata"].get("annotations") or {}
    try:
        longer = Decimal(notes.get(RANK_SECONDS, "0")) * int(run_and_rank(pod)[1] or 0)
        seconds = notes.get(RUN_SECONDS) or _variable(pod, SECONDS_VARIABLE) or "1"
        run_ms = min(max(int((Decimal(seconds) + longer) * 1000), 0), _TEN_YEARS_MS)
        exit_code = int(notes.get(EXIT_CODE, "0"))
        asked_ms = notes.get(TERM_MS, "20")
        term_ms = None if asked_ms == NEVER else max(int(asked_ms), 0)
        save_ms = _milliseconds(notes, CHECKPOINT_SECONDS)
        start_ms = _milliseconds(notes, START_SECONDS)
        notice_ms = _milliseconds(notes, NOTICE_SECONDS) if NOTICE_SECONDS in notes else None
        turns = tuple(int(Decimal(each) * 1000) for each in notes.get(READY_TURNS, "").split())
        step_ms, first = _milliseconds(notes, STEP_SECONDS), _variable(pod, ATTEMPT_VARIABLE) in ("", "1")
        hang_step = max(int(notes.get(HANG_STEP, "0")), 0) if first and step_ms else 0
        done_ms = min(_saved_ms(pod), run_ms)
        run_ms -= done_ms
        resizes, deadline_ms = notes.get(RESIZE) != NEVER, deadline_ms_of(pod)
        if deadline_ms is not None and deadline_ms < run_ms:
            return Behaviour(deadline_ms, OVERDUE, term_ms, save_ms, done_ms, start_ms, notice_ms, resizes)
    except (ValueError, TypeError, InvalidOperation, OverflowError) as error:
        raise AdmissionError(f"the pod's simulated behaviour cannot be read: {error}") from error
    ending = Ending("Failed" if exit_code else "Succeeded", "", exit_code)
    run_ms = _TEN_YEARS_MS if hang_step else run_ms
    return Behaviour(run_ms, ending, term_ms, save_ms, done_ms, start_ms, notice_ms, resizes, turns, step_ms, hang_step)


def deadline_ms_of(pod: Json) -> int | None:
    """Time from its start that the pod's deadline leaves it; None without one."""
    deadline = pod["spec"].get("activeDeadlineSeconds")
    return None if deadline is None else int(deadline) * 1000


def _milliseconds(notes: Json, name: str) -> int:
    return min(max(int(Decimal(notes.get(name, "0")) * 1000), 0), _TEN_YEARS_MS)


def _saved_ms(pod: Json) -> int:
    """Progress in the checkpoint that the pod is given, if it is one of ours."""
    for container in pod["spec"].get("containers", ()):
        for entry in container.get("env") or ():
            path = str(entry.get("value", "")) if entry.get("name") == CHECKPOINT_VARIABLE else ""
            if path.startswith(_CHECKPOINTS):
                return max(int(path.removeprefix(_CHECKPOINTS)), 0)
    return 0


def grace_ms_of(pod: Json) -> int:
    """The grace that a deletion gives this pod, or would give it."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    seconds = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS) if asked is None else asked
    return int(seconds) * 1000
