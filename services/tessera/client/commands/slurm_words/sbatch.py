"""`sbatch` and `srun`: work submitted as Slurm's users write it."""

import getpass
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.jobs.logs import copy_log, until_started
from tessera.client.commands.jobs.submit import judge, key_of, report_end
from tessera.client.commands.slurm_words.foreground import foreground
from tessera.client.commands.slurm_words.squeue import DEFAULT_QUEUE
from tessera.client.connect.connecting import bound_user, check_token_of, views_of
from tessera.client.connect.shard_views import ENDED, ID_CHARACTERS
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Mistaken, Refused, with_all_else
from tessera.client.sending import ordering, submitting
from tessera.client.sending.job_input import find_faults
from tessera.client.slurm import values
from tessera.client.slurm.abbreviated import SPEAKS
from tessera.client.slurm.in_pods import pods_of
from tessera.client.slurm.listing import fields
from tessera.client.slurm.listing.words import submitter
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import file_of, job_of, needs_steps
from tessera.client.slurm.scripts.layout import NodeSize
from tessera.client.slurm.scripts.options import OWN, Asked, split_words
from tessera.client.slurm.scripts.script import Script, preset, read_script
from tessera.client.slurm.steps import all_signals, check_owner, has_runner, read_step, run_step, run_words, split_step
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import number_or_id
from tessera_schemas.views import JobView

NOTES_MAX, NOTE_CHARACTERS = 32, 512
"""Of notes that are kept with the job, as the contract has them."""
IMAGE_VARIABLE = "TESSERA_CONTAINER_IMAGE"
WITHOUT_STEPS = "this installation has no step runner: each task is a pod and runs the whole script (docs/slurm.md)"
FOR_SBATCH = ("array", "wait", "output", "error")
SlurmWords = Annotated[
    list[str] | None, typer.Argument(help="Slurm's options, then what is to run", show_default=False)
]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="Pass over this option of Slurm's")]
IdempotencyKey = Annotated[str | None, typer.Option(help="Idempotency key; else from the CI run, else random")]


@command
async def sbatch(
    at: AccessOptions, words: SlurmWords = None, ignore: Ignore = None, key: IdempotencyKey = None
) -> Exit | None:
    """Submit a batch script with #SBATCH lines, from a file or stdin, or --wrap; see docs/slurm.md for all options."""
    if words in (["-V"], ["--version"]):
        print(SPEAKS)
        return None
    said, rest = split_words(words or ())
    at, ignored, key, said = own_options(at, ignore or (), key, said)
    said = [*preset("sbatch", os.environ), *said]
    script = _script_of(dict(said).get("wrap"), rest, ignored, said)
    asked = await asked_of(at, script)
    if "test-only" in script.options:
        asked.report_notes()
        await judge(at.find, asked.identity, asked.command, key_of(asked.command, key), asked.against)
        return None
    await asked.refuse(at, key)
    async with (
        asked.held_back() as say,
        submitting.submitted(at.find(), asked.identity, asked.command, key, say=say) as sent,
    ):
        job_id, number = sent.done.job_id, number_or_id(sent.done.number, sent.done.job_id)
        if "quiet" not in script.options:
            print(number if "parsable" in script.options else f"Submitted batch job {number}", flush=True)
        if "wait" not in script.options:
            if "output" in script.options and not asked.quiet:
                notify(f"note: `tessera logs {number}` shows its log; with --wait it is written to files")
            return None
        code = await report_end(sent, None)
    await _write_logs(at.find(), asked.identity, script, job_id)
    return code


@command
async def srun(
    at: AccessOptions, words: SlurmWords = None, ignore: Ignore = None, key: IdempotencyKey = None
) -> Exit | None:
    """
    Submit a command, show the log of its first task as it runs, and end as it does; SIGTERM, SIGHUP, and Ctrl-C while
    it waits or twice while it runs, cancel the job.

    With --jobid=JOB it is a step in the pods of a job that runs, with the options that docs/steps.md has.
    """
    options, _ = split_step(words or ())
    for named in (option.partition("=")[2] for option in options if option.partition("=")[0] == "--jobid"):
        at, *_ = own_options(at, (), None, split_words(options)[0])
        return await _run_step(at, named, words or ())
    said, rest = split_words(words or ())
    at, ignored, key, said = own_options(at, ignore or (), key, said)
    text = f"#!/bin/sh\nexec {shlex.join(rest)}\n"
    script = read_script(text, rest[0] if rest else "srun", ignored, said, in_each_pod=True)
    script = script.with_mistakes(*against_words("srun", rest), *unfit("srun", script))
    asked = await asked_of(at, script)
    await asked.refuse(at, key)
    where = at.find()
    async with (
        foreground("srun", where, asked.identity) as own,
        submitting.submitted(where, asked.identity, asked.command, key) as sent,
    ):
        own.is_stored(sent.done.job_id)
        number = number_or_id(sent.done.number, sent.done.job_id)
        notify(f"srun: job {number} queued")
        try:
            await until_started(where, asked.identity, sent.done.job_id, follow=True)
            own.is_running = True
            await copy_log(where, asked.identity, sent.done.job_id, sys.stdout.buffer, follow=True)
        except Failure as failure:  # it never started, or who asks may not read logs: its end is still told
            notify(f"srun: {failure}")
            own.is_running = True  # as far as anybody here knows
        end = await sent.wait(None)
    if end is None:
        return Exit.FAILED
    phase, reason = end
    if phase != "succeeded":
        notify(f"srun: job {number} {phase}" + (f": {reason.sentence()}" if reason is not None else ""))
    exit_code = reason.numbers.get("exit_code", 0) if reason is not None else 0
    return exit_code or submitting.exit_of_end(phase, reason)  # type: ignore[return-value]  # the program's own code


def against_words(name: str, words: Sequence[str]) -> list[str]:
    """Mistakes in the words of a step: none are there, or those of several programs."""
    if ":" in words:
        return [f"{name}: several programs in one step (:) are not there; write roles of a job file"]
    return [] if words else [f"{name}: nothing to run; write srun OPTIONS COMMAND"]


def unfit(name: str, script: Script) -> list[str]:
    """Mistakes in the options of a job whose end `srun` and `salloc` wait for themselves."""
    found = [f"--{option}" for option in FOR_SBATCH if option in script.options]
    return [f"{name}: {', '.join(found)}: for sbatch alone; leave it out"] if found else []


async def _run_step(at: AccessOptions, named: str, words: Sequence[str]) -> Exit:
    """A step in the job of this name; the highest exit code of its tasks."""
    _, command = split_step(words)
    wrong = against_words("srun", command[:1]) + ([] if named else ["srun: --jobid has no value; write --jobid=JOB"])
    if wrong:
        raise Failure(Exit.USAGE, "; ".join(wrong))
    job = await until_started(at.find(), at.identity, named, follow=False)
    if job.phase in ENDED:
        raise Failure(Exit.CONFLICT, f"srun: job {job.job_id} has ended ({job.phase})")
    check_owner(job)
    async with pods_of(job.tenant) as pods:
        if await has_runner(pods, job):
            return await run_words(pods, job, ["srun", *words], all_signals)  # type: ignore[return-value]  # its own code
        step, command = read_step(words)
        return await run_step(pods, job, command, step)  # type: ignore[return-value]  # the program's own code


@dataclass(frozen=True, slots=True)
class Submit:
    """A submit as it is sent, as whom, and what is against it already."""

    command: dict[str, Any]
    identity: str | None
    against: Refused | Mistaken | None = None
    notes: tuple[str, ...] = ()
    quiet: bool = False
    """Nothing is said beside the answer: a program reads it."""

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[Callable[[str], None]]:
        """A way to say what only a failure makes worth knowing, as the key of a submit: at once unless it is quiet."""
        kept = list[str]()
        try:
            yield kept.append if self.quiet else notify
        except BaseException:
            for line in kept:
                notify(line)
            raise

    async def refuse(self, at: AccessOptions, key: str | None) -> None:
        """Says what is to be known of it. Raises all that is against it, if anything is."""
        if not self.quiet:
            self.report_notes()
        if self.against is not None:
            await submitting.refuse(at.find, self.identity, self.command, key, self.against)

    def report_notes(self) -> None:
        """The notes about it, on stderr."""
        for note in self.notes:
            notify(f"note: {note}")


def own_options(
    at: AccessOptions, ignored: Sequence[str], key: str | None, said: Sequence[Asked]
) -> tuple[AccessOptions, list[str], str | None, list[Asked]]:
    """Options of `tessera` that stand among Slurm's, put where they belong; and the others."""
    own = {name: value for name, value in said if name in OWN}
    at = replace(
        at,
        identity=own.get("as", at.identity),
        home=Path(own["home"]) if "home" in own else at.home,
        shard=own.get("shard", at.shard),
        context=own.get("context", at.context),
    )
    passed_over = [*ignored, *(value for name, value in said if name == "ignore")]
    return at, passed_over, own.get("key", key), [each for each in said if each[0] not in OWN]


def _script_of(wrapped: str | None, rest: Sequence[str], ignored: Sequence[str], said: Sequence[Asked]) -> Script:
    if wrapped is not None:
        script = read_script(f"#!/bin/sh\n{wrapped}\n", "wrap", ignored, said)
        return script.with_mistakes(*([f"sbatch: --wrap and {rest[0]}: say one of them"] if rest else []))
    nothing = "#!/bin/sh\n"
    if not rest:
        if sys.stdin.isatty():
            said_so = "sbatch: no script; write sbatch FILE, --wrap='COMMAND', or pipe a script in"
            return read_script(nothing, "sbatch", ignored, said).with_mistakes(said_so)
        return read_script(sys.stdin.buffer.read().decode(errors="replace"), "sbatch", ignored, said)
    try:
        text = files.read_text(Path(rest[0]), newline="")
    except Failure as failure:
        return read_script(nothing, rest[0], ignored, said).with_mistakes(str(failure))
    return read_script(text, rest[0], ignored, said, rest[1:])


async def asked_of(at: AccessOptions, script: Script, with_steps: Script | None = None) -> Submit:
    """
    The submit that the script asks for, with what it waits for by id, and all that is against it.

    It is that of `with_steps` instead, if there is one, where a node may be a pod.
    """
    options, against = script.options, Against(script)
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    rooms = await _rooms(at, script, against, bool(with_steps))
    script = with_steps if with_steps and rooms is not None else script
    job = job_of(script, os.environ.get(IMAGE_VARIABLE), os.environ, now, against, rooms)
    spec = files.job_spec(job, script.where)
    spec.setdefault("queue", DEFAULT_QUEUE)
    spec["user"] = submitter()
    if "dependency" in options:
        said = values.Said(script.where, "dependency", options["dependency"])
        spec["after"] = [
            {"condition": condition} | ({"job": await _job_named(at, job, against)} if job else {})
            for condition, job in against.tried(
                "dependency", partial(values.dependencies_of, said), list[tuple[str, str]]()
            )
        ]
    if "exclusive" in options:
        await check_exclusive(at, script, job, against)
    identity = at.identity
    try:
        identity = await _identity_of(at, options.get("account"))
        with suppress(Transient):  # a dry run is judged without the gateway; nothing else is sent then
            spec["user"] = await bound_user(at.find(), identity) or spec["user"]
    except (Failure, Transient) as failure:
        against.failed("account", failure)
    command: dict[str, Any] = {"kind": "submit_job", "spec": spec, "held": "hold" in options}
    if "," in options.get("partition", "") and against.error is None:
        asked = options["partition"]
        if (queue := await _first_that_takes(at, identity, command, asked.split(","), against)) is not None:
            spec["queue"] = queue
            against.notes.append(f"{script.where}: --partition={asked}: it waits in {queue}")
    if notes := [note[:NOTE_CHARACTERS] for note in against.notes[:NOTES_MAX]]:
        command["notes"] = notes
    quiet = "notes" in script.ignored or not {"parsable", "quiet"}.isdisjoint(options)
    error, faults = against.error, find_faults(command)
    if error is not None or faults:
        error = Refused(faults) if error is None else with_all_else(error, faults)
    elif against.away is not None:
        raise against.away
    return Submit(command, identity, error, tuple(against.notes), quiet)


async def check_exclusive(at: AccessOptions, script: Script, job: dict[str, Any], against: Against) -> None:
    """Notes where no node has exactly the GPUs that a pod asks for, and `--exclusive=user` and the like."""
    if (how := script.options["exclusive"]) != "yes":
        against.add("exclusive", f"{script.where}: --exclusive={how}: say --exclusive, a node for each pod alone")
        return
    gpus = job["roles"][0]["resources"].get("gpus", 0)
    try:
        sizes = {node.gpus for node in await at.views().nodes() if not node.gone}
    except (Failure, Transient) as failure:
        against.failed("exclusive", failure)
        return
    if sizes and gpus not in sizes:
        there = " or ".join(map(str, sorted(sizes)))
        way_out = f"ask for all GPUs of a node (--gpus-per-node={there}), or delete it: whole GPUs are never shared"
        against.add("exclusive", f"{script.where}: --exclusive: no node has {gpus} GPUs; {way_out}")


async def _rooms(at: AccessOptions, script: Script, against: Against, always: bool) -> list[NodeSize] | None:
    """Sizes of the nodes for a script that starts tasks by steps; None where it has none, or its pods are its tasks."""
    is_asked = always or (not script.in_each_pod and needs_steps(script))
    if "spread-tasks" in script.options or not is_asked:
        return None
    if not await _has_steps(at, script):
        if needs_steps(script):
            against.notes.append(f"{script.where}: {WITHOUT_STEPS}")
        return None
    try:
        nodes = await at.views().nodes()
    except (Failure, Transient):
        return []  # it is one pod then, where it says no number of nodes
    return [NodeSize(node.cpu_milli, node.memory_bytes, node.gpus, node.gpu_model) for node in nodes if not node.gone]


async def _has_steps(at: AccessOptions, script: Script) -> bool:
    """Whether admission takes in jobs with steps; where nobody says, a submit will say."""
    role = {"name": "worker", "resources": {"cpu_milli": 1}, "template": {"image": "image", "command": ["true"]}}
    spec = {"name": "steps", "queue": DEFAULT_QUEUE, "launcher": "steps", "roles": [role]}
    try:
        identity = await _identity_of(at, script.options.get("account"))
        async with submitting.connected(at.find(), identity) as tessera:
            await tessera.judge({"kind": "submit_job", "spec": spec})
    except Refused as refused:
        return not any(reason.field == "launcher" for reason in refused.reasons)
    except (Failure, Transient):
        return True
    return True


async def _first_that_takes(
    at: AccessOptions, identity: str | None, command: dict[str, Any], queues: Sequence[str], against: Against
) -> str | None:
    """The first queue in which admission takes the job in, as with Slurm."""
    try:
        async with submitting.connected(at.find(), identity) as tessera:
            for queue in queues:
                try:
                    await tessera.judge(command | {"spec": command["spec"] | {"queue": queue}})
                except Refused:
                    continue
                return queue
    except (Failure, Transient) as failure:
        against.failed("partition", failure)
    return None


async def _job_named(at: AccessOptions, job: str, against: Against) -> str:
    """The id of a job that is depended upon; where there is none, that is noted."""
    try:
        return await ordering.find_awaited_id(at.find(), job)
    except (Failure, Transient) as failure:
        against.failed("dependency", failure)
        return "a" * ID_CHARACTERS


async def _identity_of(at: AccessOptions, account: str | None) -> str | None:
    """As whom to submit; None where a token says it, which the account must then be of. Raises Failure."""
    if account is None or account == at.identity:
        return at.identity
    if at.identity is not None:
        raise Failure(Exit.USAGE, f"--account={account} and --as {at.identity}: say one of them")
    where = at.find()
    if where.login is None or where.can_be(account):
        return account
    await check_token_of(where, account)
    return None


async def _write_logs(where: Where, identity: str | None, script: Script, job_id: str) -> None:
    """The logs of the job, or of an array's tasks, into the files that the script names."""
    patterns = [script.options[name] for name in ("output", "error") if name in script.options]
    if not patterns:
        return
    try:
        views = views_of(where, identity)
        jobs = [await views.job(job_id)]
        if jobs[0].array is not None:
            jobs = await views.jobs(array=job_id)
    except Failure as failure:  # the job's end is the answer all the same
        notify(f"note: no log is written: {failure}")
        return
    for job in jobs:
        await _write_log(where, identity, job, patterns[0])


async def _write_log(where: Where, identity: str | None, job: JobView, pattern: str) -> None:
    task = job.task if job.task_of else None
    ranks = range(job.pods) if any(sign in pattern for sign in ("%t", "%n", "%N")) else range(1)
    for rank in ranks if job.phase in ENDED and job.attempt else ():
        path = Path(file_of(pattern, fields.array_of(job), job.name, getpass.getuser(), task, rank))
        try:
            with path.open("wb") as file:  # noqa: ASYNC230  # nothing else runs here
                await copy_log(where, identity, job.job_id, file, rank=rank)
        except (OSError, Failure) as error:
            notify(f"note: {path} is not written: {error}")
