"""`slots`: how many pods of 1, 2, 4, 8 … GPUs could start now, and what keeps idle GPUs from use."""

from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import TypeAdapter

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import api_of
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.explain import wrapped
from tessera.client.views.overview import class_lines
from tessera.client.views.rendering import Column, Output, plain, show_value, table
from tessera.domain.devices.free_slots import Slots, Stranded, Unclaimed
from tessera_schemas.text.units import format_milli

SAID = {
    Stranded.OTHERS: "held by pods that Tessera does not manage",
    Stranded.FAULT: "on nodes that are not ready, or drained",
    Stranded.RESERVED: "kept for jobs that will start there",
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
    """One size of one pool."""

    pool: str
    gpus: int
    slots: int
    largest: tuple[tuple[str, int], ...]

    def describe_largest(self) -> str:
        return ", ".join(f"{most} in one {level}" for level, most in self.largest)


SIZES: list[Column[SlotRow]] = [
    Column("POOL", lambda row: row.pool, shrinks=True),
    Column("GPUS", lambda row: str(row.gpus), right=True),
    Column("SLOTS", lambda row: str(row.slots), right=True),
    Column("LARGEST GANG", SlotRow.describe_largest, shrinks=True),
]


@command
async def slots(
    at: AccessOptions,
    pool: Annotated[str, typer.Argument(help="Only this pool")] = "",
    output: Format = Output.TABLE,
) -> None:
    """Show how many pods of 1, 2, 4, 8 … GPUs could start now, and what keeps idle GPUs from use."""
    answer = await api_of(at.find(), at.identity).get("/v1/slots")
    known, as_of = TypeAdapter(list[Slots]).validate_python(answer["items"]), int(answer["as_of"])
    found = [each for each in known if pool in ("", each.pool)]
    if pool and not found:
        raise Failure(Exit.NOT_FOUND, f"pool {pool}: no queue uses this pool; see `tessera queue list`")
    if output.for_programs:
        show_value(output, {"items": [plain(each) for each in found]}, as_of)
    else:
        print("\n".join(lines(found, wide=output is Output.WIDE)))
        print(f"as of {as_of}")


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
