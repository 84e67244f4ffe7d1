"""
Steps: commands in the pods of an allocation that runs, as who calls and with their own rights.

No service takes part, so nobody but the cluster says who may. Where the pods have the step runner, its own `srun` in
the first pod does all; elsewhere a task is a pod, and each is called.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.in_pods import ERRORS, OUTPUT, NoProgram, PodExec, show
from tessera.client.slurm.scripts.options import OWN, split_words
from tessera.client.slurm.scripts.srun import KNOWN, UNKNOWN
from tessera.client.views.rendering import notify
from tessera.kernel.ids import random_key
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.views import JobView
from tessera_schemas.work.pod_template import STEPS_DIRECTORY

RUNNER = f"{STEPS_DIRECTORY}/bin/tessera-steps"
NO_VALUE = ("--propagate", "--quit-on-interrupt")
"""Options of the runner's `srun` that stand alone, beside the flags of the table."""
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FOR_A_SHELL = ("--pty", "-n1", "--ntasks=1", "-N1", "--nodes=1", "--overlap", "-u", "--unbuffered")
"""Options that are so anyway where a step is one command on a terminal."""
Tell = Callable[[signal.Signals], None]
"""Brings a signal to a step."""
Signals = Callable[[Tell], AbstractContextManager[None]]
"""The signals to this process meanwhile, handed on."""

OPTIONS = ("jobid", "ntasks", "nodes", "label", "l", "pty", "overlap", "exact", "unbuffered", "u")
"""What an `srun` within an allocation may say; `overlap` and those behind it are so anyway."""
LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """Which ranks run a command (None: all), whether lines begin with their rank, whether it gets the terminal."""

    tasks: int | None = None
    label: bool = False
    terminal: bool = False


def read_step(words: Sequence[str]) -> tuple[SlurmStep, list[str]]:
    """An `srun` where a task is a pod, and its command. Raises Failure with all that is wrong with it."""
    said, (_, command) = dict(split_words(for_runner(split_step(words)[0]))[0]), split_step(words)
    mistakes = []
    if wrong := [f"--{name}" for name in said if name not in OPTIONS]:
        mistakes.append(f"srun: {', '.join(wrong)}: the allocation has it; a step knows -n, --label, --pty")
    asked = said.get("ntasks", said.get("nodes", "1" if "pty" in said else None))
    if asked is not None and not (asked.isdecimal() and int(asked)):
        mistakes.append(f"srun: {asked!r} is no number of tasks; write -n 2")
    if not command or ":" in command:
        mistakes.append("srun: one program is to run; write srun OPTIONS COMMAND")
    if mistakes:
        raise Failure(Exit.USAGE, "; ".join(mistakes))
    terminal = "pty" in said
    tasks = 1 if terminal else int(asked) if asked else None
    return SlurmStep(tasks, not {"label", "l"}.isdisjoint(said), terminal), command


def split_step(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of an `srun`, each value in its option's own word, and the words from the command on."""
    left, found = list(words), list[str]()
    while left and left[0].startswith("-") and len(left[0]) > 1:
        word = left.pop(0)
        if word == "--":
            break
        is_long, is_whole = word.startswith("--"), "=" in word
        option = KNOWN.get(word if is_long else word[:2], UNKNOWN)
        if is_long and option is UNKNOWN and not is_whole:  # cut short
            option = next((each for name, each in KNOWN.items() if name.startswith(word)), UNKNOWN)
        takes = not option.flag and not is_whole and (is_long or len(word) == 2) and word not in NO_VALUE
        found.append(f"{word}{'=' if is_long else ''}{left.pop(0)}" if takes and left else word)
    return found, left


def for_runner(options: Sequence[str]) -> list[str]:
    """The options of an `srun` that the runner's own reads: all but those of this side, and the job, which it is in."""
    here = {f"--{name}" for name in (*OWN, "jobid")}
    return [option for option in options if option.partition("=")[0] not in here]


async def run_in_job(
    pods: PodExec,
    job: JobView,
    words: Sequence[str],
    terminal: bool,
    signals: Signals,
) -> int:
    """
    Run the words in the job's first pod, which has the step runner; their exit code.

    A `terminal` is the caller's own, and its keys are the words' signals; else `signals` has those that are handed on.
    """
    pod = pod_name(run_id(job.job_id, job.attempt), 0)
    if terminal:
        return await pods.run(pod, [RUNNER, "enter", *words], reads=True, terminal=True)
    name, telling = f"client-{random_key()}", set[asyncio.Future[None]]()

    def hand_on(number: signal.Signals) -> None:
        telling.add(told := asyncio.ensure_future(_signal_by_call(pods, pod, name, number)))
        told.add_done_callback(telling.discard)

    with signals(hand_on):
        return await pods.run(pod, [RUNNER, "as", name, *words], reads=sys.stdin is not None)


async def run_words(pods: PodExec, job: JobView, words: Sequence[str], signals: Signals) -> int:
    """
    Run a command, or `srun` with its options, where the pods have the step runner; their exit code.

    A command has this process's terminal, if it has one; of steps one with `--pty`, which is alone in the first pod.
    """
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if words[0] != "srun":
        return await run_in_job(pods, job, words, has_terminal, signals)
    options, command = split_step(words[1:])
    if has_terminal and "--pty" in options:
        if lost := [option for option in for_runner(options) if option not in FOR_A_SHELL]:
            notify(f"srun: Warning: {' '.join(lost)} is passed over: --pty runs one task, in the first pod")
        return await run_in_job(pods, job, command, True, signals)
    return await run_in_job(pods, job, ["srun", *for_runner(options), *command], False, signals)


@contextmanager
def all_signals(tell: Tell) -> Iterator[None]:
    """Signals to this process go to the step, and this process ends as the step does."""
    loop = asyncio.get_running_loop()
    heard = [number for number in HANDED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, tell, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


async def has_runner(pods: PodExec, job: JobView) -> bool:
    """Whether the job's first pod has the step runner. Raises Failure where it is not reached."""
    try:
        await pods.run(pod_name(run_id(job.job_id, job.attempt), 0), [RUNNER, "tell", "nobody", "USR1"], _ignore)
    except NoProgram:
        return False
    return True


async def run_step(pods: PodExec, job: JobView, words: Sequence[str], step: SlurmStep) -> int:
    """
    Run the words in the job's pods, each with its own variables and GPUs, without a step runner; the highest exit code.

    A step of one rank has this process's input. Raises Failure where there are not that many pods.
    """
    tasks = job.pods if step.tasks is None else step.tasks
    if tasks > job.pods:
        raise Failure(Exit.USAGE, f"srun: {tasks} tasks, and the allocation has {job.pods}: a task is a pod")
    terminal = step.terminal and sys.stdin.isatty()

    async def run(rank: int) -> int:
        lines = _Labelled(rank)
        pod = pod_name(run_id(job.job_id, job.attempt), rank)
        code = await pods.run(pod, words, lines.take if step.label else show, reads=tasks == 1, terminal=terminal)
        lines.end()
        return code

    return max(await asyncio.gather(*map(run, range(tasks))))


def check_owner(job: JobView) -> None:
    """Raises Failure for pods that are a user's own object's."""
    if job.owner:
        raise Failure(Exit.USAGE, f"srun: the pods of {job.owner} are yours: kubectl exec -n {job.tenant} POD")


class _Labelled:
    """Lines of a rank with its number before each."""

    def __init__(self, rank: int) -> None:
        self._rank, self._begun = rank, {OUTPUT: b"", ERRORS: b""}

    def take(self, stream: int, written: bytes) -> None:
        *lines, self._begun[stream] = (self._begun[stream] + written).split(b"\n")
        if len(self._begun[stream]) > LINE_BYTES:
            lines, self._begun[stream] = [*lines, self._begun[stream]], b""
        if lines:
            show(stream, b"".join(b"%d: %s\n" % (self._rank, line) for line in lines))

    def end(self) -> None:
        for stream, begun in self._begun.items():
            if begun:
                show(stream, b"%d: %s" % (self._rank, begun))


def _ignore(stream: int, written: bytes) -> None: ...


async def _signal_by_call(pods: PodExec, pod: str, name: str, number: signal.Signals) -> None:
    try:
        await pods.run(pod, [RUNNER, "tell", name, number.name], _ignore)
    except Failure as failure:
        notify(f"srun: {number.name} did not reach the step: {failure}")
