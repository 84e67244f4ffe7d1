"""`slots`: how many pods of 1, 2, 4, 8 … GPUs, or of a job, could start now, and what keeps idle GPUs from use."""

from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.jobs.submit import DEFAULT_IMAGE, Devices, Match
from tessera.client.connect.connecting import api_of
from tessera.client.input import files
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.submitting import spec_of_options
from tessera.client.slurm import values
from tessera.client.views.explain import wrapped
from tessera.client.views.overview import class_lines
from tessera.client.views.rendering import Column, Output, plain, show, show_value, table
from tessera.domain.devices.free_slots import Slots, Stranded, Unclaimed
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Json
from tessera_schemas.text.units import format_milli

SAID = {
    Stranded.OTHERS: "held by pods that Tessera does not manage",
    Stranded.FAULT: "on nodes that are not ready, or drained",
    Stranded.BOOKED: "kept within the window of a reservation",
    Stranded.RESERVED: "kept for jobs that will start there, or as spares",
    Stranded.NOBODY: "no job may use them: GPU model, labels, taints",
    Stranded.SHAPE: "parts of GPUs that no job asks for",
    Stranded.PODS: "their nodes take no more pods",
    Stranded.CPU: "no CPU is left beside them",
    Stranded.MEMORY: "no memory is left beside them",
    Stranded.NONE: "can be had now",
}
WHY_FREE = {
    Unclaimed.NOTHING_WAITS: "nothing waits",
    Unclaimed.QUOTA: "what waits lacks its queue's quota",
    Unclaimed.ABANDONED: "what waits has lost its queue or tenant",
    Unclaimed.JOBS_WAIT: "jobs wait for more at once, or for their turn",
}
"""Why GPUs that can be had are free."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One size of one pool, by GPUs or by the `role` of a job."""

    pool: str
    gpus: int
    slots: int
    largest: tuple[tuple[str, int], ...]
    role: str = ""

    def describe_largest(self) -> str:
        return ", ".join(f"{most} in one {level}" for level, most in self.largest)


SIZES: list[Column[SlotRow]] = [
    Column("POOL", lambda row: row.pool, shrinks=True),
    Column("GPUS", lambda row: str(row.gpus), right=True),
    Column("SLOTS", lambda row: str(row.slots), right=True),
    Column("LARGEST GANG", SlotRow.describe_largest, shrinks=True),
]
OF_ROLES: list[Column[SlotRow]] = [
    Column("POOL", lambda row: row.pool, shrinks=True),
    Column("ROLE", lambda row: row.role, shrinks=True),
    Column("PODS", lambda row: str(row.slots), right=True),
    Column("LARGEST GANG", SlotRow.describe_largest, shrinks=True),
]


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The pod that is asked about; none of them: pods of 1, 2, 4, 8 … GPUs."""

    file: Annotated[Path | None, typer.Option("--file", "-f", help="Pods of each role of a job file (YAML)")] = None
    gpus: Annotated[int, typer.Option(help="Pods with so many whole GPUs", min=0)] = 0
    cpu: Annotated[str | None, typer.Option(help="And so much CPU: 2, 500m", show_default=False)] = None
    memory: Annotated[str | None, typer.Option(help="And so much memory, such as 16Gi", show_default=False)] = None
    gpu_model: Annotated[list[str] | None, typer.Option(help="Only on these GPU models")] = None
    gpu_resource: Annotated[
        str | None, typer.Option(help="GPUs of this resource, such as amd.com/gpu", show_default=False)
    ] = None
    device: Devices = None
    match: Match = None

    @property
    def are_said(self) -> bool:
        """Whether a pod is asked about."""
        return any(getattr(self, option.name) for option in fields(self))

    def roles(self) -> list[Json]:
        """Roles as they are sent. Raises Failure."""
        if self.file is None:
            asked: dict[str, Any] = {"gpu_milli": 0, "gpu_model": self.gpu_model or (), "device": self.device or ()}
            asked |= {name: getattr(self, name) for name in ("gpus", "cpu", "memory", "match", "gpu_resource")}
            said = spec_of_options(("pod",), name=None, queue="default", image=DEFAULT_IMAGE, replicas=1, **asked)
        else:
            said = files.read_yaml(self.file)
        spec, mistaken = files.read_job(said, str(self.file or "slots"))
        if mistaken is not None:
            raise mistaken
        roles = spec.get("roles")
        if not isinstance(roles, list) or not all(isinstance(role, dict) for role in roles):
            raise Failure(Exit.USAGE, f"{self.file}: has no list of roles")
        return roles


@command
async def slots(
    at: AccessOptions,
    pod: PodOptions,
    pool: Annotated[str, typer.Argument(help="Only this pool")] = "",
    when: Annotated[
        str | None, typer.Option("--at", help="Later, if nothing else starts: now+3hours, 22:00, 2030-01-31T12:00")
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """
    Show how many pods of 1, 2, 4, 8 … GPUs could start now, and what keeps idle GPUs from use.

    With --at, once the runs have ended that are expected to by then, on nodes that no reservation keeps at that time.

    With options, or a job file, how many pods of that kind, each alone; quota is not looked at, nor CPU and memory that
    are not said.
    """
    if pod.are_said and when is not None:
        raise Failure(Exit.USAGE, "slots: --at is about pods of 1, 2, 4, 8 … GPUs alone; leave out the pod")
    if pod.are_said:
        await _show_roles(at, pod, pool, output)
        return
    asked = {} if when is None else {"at": _moment(when)}
    answer = await api_of(at.find(), at.identity).get("/v1/slots", **asked)
    known, as_of = TypeAdapter(list[Slots]).validate_python(answer["items"]), int(answer["as_of"])
    found = [each for each in known if pool in ("", each.pool)]
    if pool and not found:
        raise Failure(Exit.NOT_FOUND, f"pool {pool}: no queue uses this pool; see `tessera queue list`")
    if output.for_programs:
        show_value(output, {"items": [plain(each) for each in found]}, as_of)
    else:
        print("\n".join(lines(found, wide=output is Output.WIDE)))
        print(f"as of {as_of}")


def _moment(text: str) -> int:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    return values.begin_ms(values.Said("slots", "at", text), now)


async def _show_roles(at: AccessOptions, pod: PodOptions, pool: str, output: Output) -> None:
    api, rows, as_of = api_of(at.find(), at.identity), list[SlotRow](), 0
    for role in pod.roles():
        _, answer = await api.post("/v1/slots", {"role": role})
        as_of, gpus = int(answer["as_of"]), int(role["resources"].get("gpus", 0))
        for each in answer["items"]:
            largest = tuple((str(level), int(most)) for level, most in each["largest"])
            rows.append(SlotRow(each["pool"], gpus, int(each["slots"]), largest, role["name"]))
    rows = [row for row in rows if pool in ("", row.pool)]
    if pool and not rows:
        raise Failure(Exit.NOT_FOUND, f"pool {pool}: no queue uses this pool; see `tessera queue list`")
    show(output, OF_ROLES, rows, as_of)


def lines(found: list[Slots], wide: bool = False) -> list[str]:
    """The table of sizes, then of each pool its idle GPUs by cause; at most 80 columns unless wide."""
    rows = [SlotRow(each.pool, size.gpus, size.slots, size.largest) for each in found for size in each.sizes]
    describe_largest = table(SIZES, rows, wide=wide)
    for each in found:
        describe_largest.append(
            f"pool {each.pool}: {format_milli(each.idle_gpu_milli)} of {each.gpus} GPUs are idle"[:80]
        )
        for cause, milli in each.stranded:
            rules = each.held_back if cause is Stranded.NONE else ()
            if milli and not rules:
                describe_largest.append(f"  {format_milli(milli):>8} {_describe(each, cause)}")
            for rule in rules:
                told = f"  {format_milli(rule.gpu_milli):>8} can be had now: {rule.describe()}"
                describe_largest += [told] if wide else wrapped(told, 11)
        describe_largest += _unused_lines(each)
        described = [f"  {line}" for line in class_lines(each.device_classes)]
        describe_largest += described if wide else [line for told in described for line in wrapped(told)]
    return describe_largest


def _describe(left: Slots, cause: Stranded) -> str:
    return f"{SAID[cause]}: {WHY_FREE[left.unclaimed]}" if cause is Stranded.NONE else SAID[cause]


def _unused_lines(left: Slots) -> list[str]:
    """Lines on allocated but unused GPUs. They are not idle GPUs of the pool: nothing may start there."""
    if not left.unused.runs:
        return []
    runs = "1 run uses" if left.unused.runs == 1 else f"{left.unused.runs} runs use"
    return [f"  {format_milli(left.unused.gpu_milli):>8} more are held, but {runs} none of theirs (warned)"[:80]]
