"""Options of a session, and the job that they become."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions
from tessera.client.connect.connecting import bound_user
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import submitting
from tessera.client.slurm.listing.words import submitter
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json
from tessera_schemas.work.pod_template import literally


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Resources and place in line of a session, which is one pod."""

    name: Annotated[str | None, typer.Option(help="The job's name; else made from the image")] = None
    queue: Annotated[str, typer.Option("--queue", "-q", help="Queue")] = "default"
    gpus: Annotated[int, typer.Option(help="Whole GPUs", min=0)] = 0
    gpu_milli: Annotated[int, typer.Option(help="Or thousandths of one GPU", min=0, max=999)] = 0
    gpu_model: Annotated[list[str] | None, typer.Option(help="Only these GPU models")] = None
    cpu: Annotated[
        str | None, typer.Option(help="CPU: 2, 500m (default: its GPUs' share of a node)", show_default=False)
    ] = None
    memory: Annotated[str | None, typer.Option(help="Memory, such as 16Gi (default: the same)", show_default=False)] = (
        None
    )
    priority: Annotated[str | None, typer.Option(help="Priority class (default: normal)", show_default=False)] = None
    project: Annotated[
        str | None, typer.Option(help="Project of the tenant for which its use is counted", show_default=False)
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="Variable of the pod; NAME alone: as it is here"),
    ] = None
    time_limit: Annotated[str | None, typer.Option(help="Such as 90m or 2h")] = None
    key: Annotated[str | None, typer.Option(help="Idempotency key; else from the CI run, else random")] = None


async def session_of(
    at: AccessOptions, options: SessionOptions, image: str, command: Sequence[str], template: Json, job: Json
) -> Json:
    """
    The submit of a session of this command, with more of the pod's `template` and of the `job` than options say.

    It names who submits as its user. Raises Refused, Mistaken or Failure with all that is against it.
    """
    made = submitting.spec_of_options(
        command,
        name=options.name or submitting.name_of([image.partition("@")[0].rpartition("/")[2].partition(":")[0]]),
        queue=options.queue,
        image=image,
        replicas=1,
        gpus=options.gpus,
        gpu_milli=options.gpu_milli,
        cpu=options.cpu,
        memory=options.memory,
        gpu_model=options.gpu_model or (),
    )
    variables = {"env": _variables_of(options.env)} if options.env else {}
    made["roles"][0]["template"] |= template | variables
    said: dict[str, Any] = {"priority_class": options.priority, "project": options.project}
    said |= {"time_limit": options.time_limit} if options.time_limit else {}
    made |= {name: value for name, value in said.items() if value is not None} | job
    spec, mistaken = files.read_job(made, "session")
    spec["user"] = submitter()
    with suppress(Failure, Transient):  # whose token it is; admission judges the name in any case
        spec["user"] = await bound_user(at.find(), at.identity) or spec["user"]
    asked = {"kind": "submit_job", "spec": spec}
    if mistaken is not None:
        await submitting.refuse(at.find, at.identity, asked, options.key, mistaken)
    return asked


def _variables_of(said: Sequence[str]) -> dict[str, str]:
    """Variables as `A=1` or, as they are here, `A`. Raises Failure for one that is not set."""
    found: dict[str, str] = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise Failure(Exit.USAGE, f"--env {name}: is not set here; write {name}=VALUE")
        found[name] = literally(value if equals else os.environ[name])
    return found
