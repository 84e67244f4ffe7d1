"""
Use of the GPUs that a run, or all runs of a job, held: how much of it was measured, and what was measured. Integers.

GPU time is thousandths of a GPU times milliseconds, as what is held. All are sums, or the most, since the run began: of
two measurements of one run the one that covers more takes the place of the other, and nothing is counted twice.
"""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from tessera_schemas.base import Count, Lenient, Strict
from tessera_schemas.text.units import format_age

GPU_MILLI = 1000
ADVISED_FROM_MS = 600_000
"""No advice is given on less time of measurement than this, or on less than half of what was held."""
MIB_PER_GIB = 1024


class PublicMeasuredUse(Lenient):
    """Use of GPUs as far as it was measured, as readers of events and views see it."""

    measured_gpu_milli_ms: Annotated[
        Count, Field(description="GPU time that was measured, in thousandths of a GPU times milliseconds")
    ] = 0
    worked_gpu_milli_ms: Annotated[
        Count, Field(description="The part of it in which GPUs worked: each weighs by its percentage of use")
    ] = 0
    gpus: Annotated[Count, Field(description="Most GPUs that were measured at once")] = 0
    busy_gpus: Annotated[Count, Field(description="Number of different GPUs that were ever busy")] = 0
    memory_mib: Annotated[Count, Field(description="Most memory that was used on one GPU, in MiB")] = 0
    gpu_memory_mib: Annotated[Count, Field(description="Memory of each of these GPUs in MiB; 0: not measured")] = 0

    @property
    def percent(self) -> int:
        """Mean use of the GPUs while they were measured, rounded down."""
        return self.worked_gpu_milli_ms * 100 // max(1, self.measured_gpu_milli_ms)

    def text(self, held_gpu_milli_ms: int) -> str:
        """One line for people, such as `8 GPUs held 1d7h, 2 were used (12 % of the time)`; "" of nothing measured."""
        if not self.gpus:
            return ""
        held = format_age(held_gpu_milli_ms // (self.gpus * GPU_MILLI))
        gpus, used = ("1 GPU", "it") if self.gpus == 1 else (f"{self.gpus} GPUs", str(self.busy_gpus))
        were = "were" if self.gpus > 1 and self.busy_gpus != 1 else "was"
        verb = f"{were} used" if self.busy_gpus or self.gpus > 1 else f"{were} not used"
        part = min(100, self.measured_gpu_milli_ms * 100 // max(1, held_gpu_milli_ms))
        time = "the time" if part >= 90 else f"the {part} % of the time that were measured"
        return f"{gpus} held {held}, {used} {verb} ({self.percent} % of {time}){self._memory_text()}"

    def _memory_text(self) -> str:
        if not self.gpu_memory_mib:
            return ""
        used, there = (-(-mib // MIB_PER_GIB) for mib in (self.memory_mib, self.gpu_memory_mib))
        return f"; {used} of {there} GiB of memory at most"

    def advice(self, held_gpu_milli_ms: int, pods: int) -> tuple[str, ...]:
        """
        Sentences on how to ask for less, each with the option; none without evidence.

        Evidence is a measurement of ten minutes at least, and of half of what the job held at least.
        """
        enough = self.measured_gpu_milli_ms >= ADVISED_FROM_MS * GPU_MILLI * max(1, self.gpus)
        if not self.gpus or not enough or 2 * self.measured_gpu_milli_ms < held_gpu_milli_ms:
            return ()
        if not self.busy_gpus:
            return ("None of its GPUs was busy when measured: ask for none (--gpus 0).",)
        found = []
        if unused := self.gpus - self.busy_gpus:
            less = f"--gpus {self.busy_gpus}" if pods == 1 else "fewer --gpus, or fewer --replicas"
            never = f"{unused} of its {self.gpus} GPUs {'was' if unused == 1 else 'were'} never busy"
            found.append(f"{never}: ask for fewer ({less}).")
        if self.gpu_memory_mib and 2 * self.memory_mib <= self.gpu_memory_mib:
            share = self._share_milli()
            part = f", or a part of one (--gpu-milli {share}, mig_profile)" if self.gpus == pods and share else ""
            found.append(f"{self._memory_text()[2:]}: a smaller GPU may do (--gpu-model){part}.")
        return tuple(found)

    def _share_milli(self) -> int:
        """Share of a GPU with a quarter more of its memory and time than was used, in steps of 50; 0: above a half."""
        parts = (self.memory_mib, self.gpu_memory_mib), (self.worked_gpu_milli_ms, self.measured_gpu_milli_ms)
        share = max(1, *(-(-used * 25 // there) for used, there in parts)) * 50
        return share if 2 * share <= GPU_MILLI else 0


class MeasuredUse(PublicMeasuredUse, Strict):
    """The same as reclamation measures it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="after")
    def _parts_of_the_whole(self) -> Self:
        if self.worked_gpu_milli_ms > self.measured_gpu_milli_ms or self.busy_gpus > self.gpus:
            raise ValueError("worked_gpu_milli_ms, busy_gpus: are parts of measured_gpu_milli_ms and gpus")
        return self

    def plus(self, other: "MeasuredUse") -> "MeasuredUse":
        """Use of both, of other runs of one job: sums of time, and the most of all else."""
        measured = self.measured_gpu_milli_ms + other.measured_gpu_milli_ms
        worked = self.worked_gpu_milli_ms + other.worked_gpu_milli_ms
        return self.with_most_of(other).model_copy(
            update={"measured_gpu_milli_ms": measured, "worked_gpu_milli_ms": worked}
        )

    def with_most_of(self, other: "MeasuredUse | None") -> "MeasuredUse":
        """The same time, with the most of both of all else; GPUs count as the smallest of them."""
        if other is None:
            return self
        names = ("gpus", "busy_gpus", "memory_mib")
        most = {name: max(getattr(self, name), getattr(other, name)) for name in names}
        memories = [mib for mib in (self.gpu_memory_mib, other.gpu_memory_mib) if mib]
        return self.model_copy(update=most | {"gpu_memory_mib": min(memories, default=0)})


def added(one: MeasuredUse | None, other: MeasuredUse | None) -> MeasuredUse | None:
    """Use of both, where both were measured; else of the one that was."""
    return one.plus(other) if one is not None and other is not None else one or other
