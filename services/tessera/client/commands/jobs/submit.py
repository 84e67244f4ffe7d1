"""`submit`, `checkpoint` and `cancel`."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import orjson
import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.jobs.quotes import quote_beside, quote_lines, with_promise
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure, Mistaken, Refused, Submitted
from tessera.client.sending import ordering, submitting
from tessera.client.sending.keys import ChosenKey, choose_key
from tessera.client.views.completing import JobReference
from tessera.client.views.rendering import Output, notify, show_value
from tessera.kernel.errors import Transient
from tessera.kernel.ids import random_key
from tessera_schemas.base import Json
from tessera_schemas.commands import AnswerMove, CancelJob, ReportCheckpoint

DEFAULT_IMAGE = "python:3.12-slim"
Devices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS[+CLASS][:COUNT]",
        help="Devices of a DeviceClass (DRA) per replica: gpu.nvidia.com:1; pairs: gpu.nvidia.com+dra.net:4",
    ),
]
Match = Annotated[
    str | None,
    typer.Option(
        metavar="ATTRIBUTE",
        help="Attribute of which each pair of --device has one value, without pairs all devices: "
        "resource.kubernetes.io/pcieRoot",
    ),
]


@command
async def submit(
    at: AccessOptions,
    parsed: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="What to run, after `--`", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A job file (YAML)")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name; else made from the command")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue (default: default)", show_default=False)
    ] = None,
    gpus: Annotated[int, typer.Option(help="Whole GPUs per replica", min=0)] = 0,
    gpu_milli: Annotated[int, typer.Option(help="Or thousandths of one GPU", min=0, max=999)] = 0,
    gpu_parts: Annotated[int, typer.Option(help="With --gpu-milli: such a share of each of so many GPUs", min=1)] = 1,
    cpu: Annotated[
        str | None,
        typer.Option(help="CPU per replica: 2, 500m (default: its GPUs' share of a node)", show_default=False),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory per replica, such as 16Gi (default: the same)", show_default=False)
    ] = None,
    replicas: Annotated[int, typer.Option(help="Pods of the gang: all start or none", min=1)] = 1,
    gpu_model: Annotated[list[str] | None, typer.Option(help="Only these GPU models")] = None,
    gpu_resource: Annotated[
        str | None,
        typer.Option(help="Resource of the GPUs, such as amd.com/gpu (default: the pool's)", show_default=False),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(help="Least isolation of its GPUs: memory, compute, hardware (default: none)", show_default=False),
    ] = None,
    toleration: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE][:EFFECT]", help="Taint that its pods bear; those of its GPUs anyway"),
    ] = None,
    device: Devices = None,
    match: Match = None,
    image: Annotated[str, typer.Option(help="Container image")] = DEFAULT_IMAGE,
    priority: Annotated[str | None, typer.Option(help="Priority class (default: normal)", show_default=False)] = None,
    project: Annotated[
        str | None, typer.Option(help="Project of the tenant for which its use is counted", show_default=False)
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", "-t", help="A template of the configuration; see `tessera templates`")
    ] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Of the template")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="It waits until `tessera release`")] = False,
    time_limit: Annotated[str | None, typer.Option(help="Such as 90m or 2h")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key; else from the CI run, else random")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until the job has ended; its end is the exit code")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait at most (exit code 10)")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent and answered; nothing is taken in")
    ] = False,
    quote: Annotated[bool, typer.Option("--quote", help="Say when it starts, with which chance")] = False,
    promise: Annotated[
        str | None,
        typer.Option(
            metavar="50|80|95|TIME", help="Have its start promised for a price: by its quote of that chance, or a time"
        ),
    ] = None,
    output: Format = Output.TABLE,
) -> Exit | None:
    """Submit a job: `tessera submit -f job.yaml`, `tessera submit --gpus 8 -- python train.py`, or from a template."""
    # What the options ask for is read from `parsed`, by `_command_of`.
    asked, against = _command_of(parsed)
    if dry_run:
        await _dry_run(at.find(), at.identity, asked, key, output, against)
        return None
    if against is not None:
        await submitting.refuse(at.find, at.identity, asked, key, against)
    told = await quote_beside(at.find(), at.identity, asked) if quote else None
    if promise is not None:
        asked = await with_promise(at.find(), at.identity, asked, promise)
    async with submitting.submitted(at.find(), at.identity, asked, key) as sent:
        show_submitted(sent.done, output, told)
        return await report_end(sent, timeout) if wait else None


NAMED = {"name": "name", "queue": "queue", "priority_class": "priority", "project": "project"}
OF_GPUS = ("gpus", "gpu_milli", "gpu_parts", "gpu_model", "gpu_resource", "isolation")
ROLE_OPTIONS = (*OF_GPUS, "cpu", "memory", "replicas", "toleration", "device", "match", "image")


def _command_of(parsed: typer.Context) -> tuple[Json, Mistaken | None]:
    """The command that the options of `submit` ask for, without its key, and its quantities that are none."""
    named = {field: parsed.params[option] for field, option in NAMED.items() if parsed.params[option] is not None}
    held = {"held": True} if parsed.params["hold"] else {}
    if parsed.params["template"] is None:
        if parsed.params["parameters"]:
            raise Failure(Exit.USAGE, "submit: --parameter goes with --template")
        said, at = _job_said(parsed)
        limit = parsed.params["time_limit"]
        said = {name: value for name, value in said.items() if not limit or name != "time_limit_seconds"}
        spec, mistaken = files.read_job(said | ({"time_limit": limit} if limit else {}), at)
        return {"kind": "submit_job", "spec": spec | named, **held}, mistaken
    _check_alone(parsed, parsed.params["command"], "template", (*ROLE_OPTIONS, "file", "time_limit"))
    values = submitting.parameters_of(parsed.params["parameters"] or ())
    asked = {"kind": "submit_template", "template": parsed.params["template"], "parameters": values, **named, **held}
    return asked, None


def _job_said(parsed: typer.Context) -> tuple[Json, str]:
    """The job as a file or the options say it, and what a mistake in it is called by. Raises Failure."""
    file, command = parsed.params["file"], parsed.params["command"]
    if file is not None:
        _check_alone(parsed, command, "file", ROLE_OPTIONS)
        return files.read_yaml(Path(file)), str(file)
    if not command:
        raise Failure(Exit.USAGE, "submit: nothing to run; give -f job.yaml, --template, or a command after `--`")
    options = {option: parsed.params[option] for option in ROLE_OPTIONS}
    options |= {name: options[name] or () for name in ("gpu_model", "toleration", "device")}
    options |= {"queue": parsed.params["queue"] or "default"}
    return submitting.spec_of_options(command, name=parsed.params["name"], **options), "submit"


@command
async def checkpoint(
    to: AccessOptions,
    job: Annotated[str, typer.Argument(help="The job's whole id, as its pods have it in TESSERA_JOB_ID")],
    path: Annotated[str, typer.Argument(help="Where the work is saved; the next attempt is told")],
    attempt: Annotated[
        int, typer.Option(envvar="TESSERA_ATTEMPT", min=0, help="Of which run; 0: of whichever runs now")
    ] = 0,
    at: Annotated[
        str, typer.Option(help="Tells it from an earlier one in the same place, such as the step, within a minute")
    ] = "",
) -> None:
    """Say that a job's program has saved its work: stopping it then loses only what comes after."""
    where = to.find()
    found = await ordering.find_job_id(where, job, "save")
    tenant = to.identity if where.login is not None else where.tenant(to.identity).identity.name
    order = ReportCheckpoint(kind="report_checkpoint", v=1, job_id=found, path=path, attempt=attempt, at=at)
    await ordering.send(where, tenant, order, found)
    print(f"job {found}: the checkpoint {path} is reported")


@command
async def move(
    to: AccessOptions,
    job: Annotated[str, typer.Argument(help="The job's whole id, as its pods have it in TESSERA_JOB_ID")],
    accept: Annotated[
        bool | None, typer.Option("--accept/--veto", help="It stops, and starts elsewhere; or it stays where it is")
    ] = None,
    attempt: Annotated[
        int, typer.Option(envvar="TESSERA_ATTEMPT", min=0, help="Of which run; 0: of whichever runs now")
    ] = 0,
) -> None:
    """Answer for a job that is asked to move, so that another one finds its room in one piece."""
    if accept is None:
        raise Failure(Exit.USAGE, "move: say --accept or --veto")
    where = to.find()
    found = await ordering.find_job_id(where, job, "answer for")
    tenant = to.identity if where.login is not None else where.tenant(to.identity).identity.name
    order = AnswerMove(kind="answer_move", v=1, job_id=found, accept=accept, attempt=attempt)
    await ordering.send(where, tenant, order, found)
    print(f"job {found}: it {'moves' if accept else 'stays'}, and that is told")


@command
async def cancel(
    at: AccessOptions,
    job: JobReference,
    why: Annotated[str, typer.Option(help="For the record")] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Without its checkpoint notice; also cuts a notice short that it is having")
    ] = False,
) -> None:
    """Cancel a job, by its id, the beginning of one, or its name."""
    where = at.find()
    found, owner = await ordering.find_job(where, job, "cancel")
    order = CancelJob(kind="cancel_job", v=1, job_id=found, why=why, now=now)
    answered = await ordering.send(where, at.identity, order, found)
    print(f"job {found}: cancellation " + ("is under way" if answered else "is stored, not yet answered"))
    if owner:
        notify(ordering.describe_cancelled_owner(owner))


def _check_alone(context: typer.Context, command: Sequence[str] | None, what: str, options: Sequence[str]) -> None:
    """Raises Failure when something is said beside a file or template that it says itself."""
    given = [p.name for p in context.command.params if p.name in options and _given(context, p.name)]
    if command or given:
        raise Failure(Exit.USAGE, f"submit: {', '.join(given) or 'a command'} and a {what}; say it in the {what}")


def _given(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name) if name else None
    return source is not None and source.name == "COMMANDLINE"


AS_TOLD = {
    "stored": "stored; admission has not answered yet, see `tessera status`",
    "admitted": "stored; admission takes it in, no word of the ledger has come yet, see `tessera status`",
}
"""What is said of a submit that the ledger has not answered."""


def show_submitted(done: Submitted, output: Output, quote: Json | None = None) -> None:
    """Print what became of a submit, for people or programs, and its quote beside it."""
    if output.for_programs:
        said = {"job_id": done.job_id, "key": done.key, "admitted": done.admitted, "state": done.state}
        said |= {"notes": list(done.notes)} | ({} if quote is None else {"quote": quote})
        show_value(output, said, None)
    else:
        for note in done.notes:
            notify(note)
        print(f"job {done.job_id} {AS_TOLD.get(done.state, 'admitted')}")
        for line in () if quote is None else quote_lines(quote):
            print(line)


async def _dry_run(
    where: Where, identity: str | None, asked: Json, key: str | None, output: Output, against: Mistaken | None
) -> None:
    chosen = key_of(asked, key)
    if against is None:
        by_api = where.login is not None and identity is None
        tenant = "" if by_api else where.tenant(identity).identity.name
        data = submitting.command_bytes(asked, chosen.key, tenant)
        show_value(output if output.for_programs else Output.JSON, orjson.loads(data), None)
    await judge(lambda: where, identity, asked, chosen, against)


def key_of(asked: Json, key: str | None) -> ChosenKey:
    """The key of a submit, by its job's name where it is made from a CI run. Raises Failure for an empty one."""
    name = asked.get("spec", asked).get("name") or asked.get("template", "job")
    return choose_key(key, str(name), os.environ, random_key)


async def judge(
    find: Callable[[], Where],
    identity: str | None,
    asked: Json,
    chosen: ChosenKey,
    against: Mistaken | Refused | None = None,
) -> None:
    """
    Say that admission would take the job in; nothing is stored.

    Raises Refused, or what is `against` it already, with all that is found besides; Failure when nobody answers.
    """
    if against is not None:
        await submitting.refuse(find, identity, asked, chosen.key, against)
    try:
        async with submitting.connected(find(), identity) as tessera:
            job = await tessera.judge(asked, chosen.key)
    except Transient as error:
        said = f"it is well written, and whether it would be admitted is not known: {error}"
        raise Failure(Exit.UNAVAILABLE, said) from error
    notify(f"would be admitted{'' if chosen.source == 'random' else f' as job {job}'}; nothing was stored")


@contextmanager
def told_what_goes_on(job: str) -> Iterator[None]:
    """Tells on Ctrl-C that the job goes on without the waiting that is cut short."""
    try:
        yield
    except asyncio.CancelledError:
        notify(f"job {job} goes on; `tessera get {job}` shows it, `tessera cancel {job}` ends it")
        raise


async def report_end(sent: submitting.Sent, seconds: float | None) -> Exit:
    """Wait for the job's end and report it; neither a time-out nor Ctrl-C ends the job."""
    job = sent.done.job_id
    with told_what_goes_on(job):
        end = await sent.wait(seconds)
    if end is None:
        notify(f"job {job}: has not ended within {seconds:g} s; it goes on, see `tessera explain {job}`")
        return Exit.GAVE_UP
    phase, reason = end
    print(f"job {job} {phase}" + (f": {reason.sentence()}" if reason is not None else ""))
    return submitting.exit_of_end(phase, reason)
