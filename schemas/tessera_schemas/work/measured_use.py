"""
Use of the GPUs that a run, or all runs of a job, held: how much of it was measured, and what was measured. Integers.
Also what a job says of its checkpoints, its progress and its idleness, and of itself as a session, and where sessions
are reached.

GPU time is thousandths of a GPU times milliseconds, as what is held. All are sums, or the most, since the run began: of
two measurements of one run the one that covers more takes the place of the other, and nothing is counted twice.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Lenient, Name, Positive, Strict, later, printable
from tessera_schemas.text.units import format_age
from tessera_schemas.work.pod_template import LabelKey

GPU_MILLI = 1000
ADVISED_FROM_MS = 600_000
"""No advice is given on less time of measurement than this, or on less than half of what was held."""
MIB_PER_GIB = 1024
JOB_ID_CHARACTERS = 20
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*")
"""Names that an Ingress takes for a host."""


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


CheckpointPath = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(printable)]
"""Where a checkpoint is, in the program's own words: handed to the next attempt as it stands."""

CheckpointAt = Annotated[str, StringConstraints(max_length=256)]


class CheckpointPolicy(Strict):
    """
    Interval at which the program saves its work, and the notice that it wants before it is stopped.

    The notice comes before SIGTERM and its grace, and ends early when the program has saved.
    """

    interval_seconds: Annotated[Positive, Field(le=31_536_000, description="Seconds between checkpoints")]
    notice_seconds: Annotated[Count, Field(le=3600, description="Seconds to save before SIGTERM; 0: none")] = 0


class JobProgress(Strict):
    """
    Progress that the job's programs report on their pods, and what follows where it fails to come.

    A run of which no pod has reported any is not judged.
    """

    hang_seconds: Annotated[
        int,
        Field(ge=5, le=604_800, strict=True, description="Seconds without progress of any pod after which a run hangs"),
    ]
    then: Annotated[
        Literal["warn", "restart", "elsewhere"],
        Field(
            description="Consequence of a hang. warn: an event. restart: the run starts again. elsewhere: it does, and "
            "avoids the nodes of the pods that are behind, or of all where none is"
        ),
    ] = "warn"
    unused_seconds: Annotated[
        Annotated[int, Field(ge=5, le=604_800, strict=True)] | None,
        Field(
            description="Seconds without progress after which a run hangs already, where none of its GPUs was used "
            "meanwhile, as far as that is measured; null: GPUs say nothing of a hang"
        ),
    ] = later(None)
    straggler_percent: Annotated[
        int,
        Field(
            ge=0,
            le=99,
            strict=True,
            description="Percentage by which a pod's steps stay behind the median of its run, from which it is a "
            "straggler; 0: none is",
        ),
    ] = 0
    straggler_seconds: Annotated[
        int, Field(ge=5, le=86_400, strict=True, description="Seconds over which steps are compared")
    ] = 600
    straggler_then: Annotated[
        Literal["warn", "elsewhere"],
        Field(description="Consequence of a straggler. elsewhere: the run starts again and avoids its node"),
    ] = "warn"


class JobIdle(Strict):
    """
    Rule for idleness of this job, where its queue lets jobs set one; it turns on nothing that its queue leaves off.

    A value left out is the queue's.
    """

    allow_idle: Annotated[bool, Field(description="Permit GPUs held but not used, as in sessions")] = False
    busy_percent: Annotated[
        int | None, Field(ge=1, le=100, strict=True, description="GPU use in percent from which a GPU counts as busy")
    ] = None
    warn_seconds: Annotated[
        int | None,
        Field(ge=1, le=31_536_000, strict=True, description="Idle seconds until a warning"),
    ] = None


class SessionIdle(Strict):
    """Rule for a notebook that nobody uses."""

    idle_seconds: Annotated[
        Count | None,
        Field(
            le=31_536_000,
            description="Seconds without a busy kernel or other use after which a notebook stops; 0: never; null: as "
            "the configuration says",
        ),
    ] = None
    warning_seconds: Annotated[
        Count, Field(le=86_400, description="Seconds from the warning until it stops, part of `idle_seconds`")
    ] = 600
    on_idle: Annotated[
        Literal["pause", "end"],
        Field(description="pause: the job is held, and keeps its volumes and its id. end: the job is cancelled"),
    ] = "pause"


class SessionIngress(Strict):
    """
    Address by which browsers reach a session that asks for it, by an Ingress of its own.

    `{job}` and `{tenant}` stand for the job's id and its tenant.
    """

    host: Annotated[
        str,
        StringConstraints(max_length=253),
        Field(description="Host name, as `{job}.notebooks.example.com`; `{job}` has to stand in it or in the path"),
    ]
    path: Annotated[
        str,
        StringConstraints(max_length=253, pattern=r"^/([A-Za-z0-9._~{}-]+/?)*$"),
        Field(description="Path below which the program serves, as `/{tenant}/{job}`"),
    ] = "/"
    ingress_class: Annotated[
        str, StringConstraints(max_length=253), Field(description="IngressClass; empty: the cluster's default")
    ] = ""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, StringConstraints(max_length=1024)]],
        Field(max_length=32, description="Annotations of each Ingress, as its controller reads them"),
    ] = Field(default_factory=dict)
    tls: Annotated[bool, Field(description="Serve by https; false: by http, which shows tokens to whoever listens")] = (
        True
    )
    tls_secret: Annotated[
        str,
        StringConstraints(max_length=253),
        Field(description="Secret of each tenant's namespace with the certificate; empty: the controller's own"),
    ] = ""

    @model_validator(mode="after")
    def _is_template(self) -> Self:
        if "{job}" not in self.host + self.path:
            raise ValueError("host: say {job} in it, or in path, so that sessions have addresses of their own")
        host, path = self.place("a" * JOB_ID_CHARACTERS, "a")
        if not HOST.fullmatch(host):
            raise ValueError(f"host: {self.host} is no host name, with {{job}} and {{tenant}} in it")
        if "{" in path or "}" in path:
            raise ValueError("path: may have {job} and {tenant} in it, and no other name")
        return self

    def place(self, job_id: str, tenant: str) -> tuple[str, str]:
        """Host and path of a job; the path ends in a slash."""
        host, path = (
            text.replace("{job}", job_id).replace("{tenant}", tenant) for text in (self.host, self.path.rstrip("/"))
        )
        return host, f"{path}/"

    def url(self, job_id: str, tenant: str) -> str:
        """Address of a job's session."""
        return f"http{'s' * self.tls}://{''.join(self.place(job_id, tenant))}"


class SessionDefaults(SessionIdle):
    """
    The same for notebooks whose job does not say it, the class of sessions that were paused, and the address of those
    that ask for one.
    """

    resume_class: Annotated[
        Name | None,
        Field(
            description="Priority class of sessions that ran before and are released, where it is higher than their "
            "own; tenants need no grant for it; null: their own"
        ),
    ] = None
    ingress: Annotated[
        SessionIngress | None,
        Field(description="Address of sessions that ask for an Ingress; null: such sessions are refused"),
    ] = later(None)


class Session(SessionIdle):
    """A job that a person uses while it runs: one pod, which counts against `limits.sessions_per_user`."""

    kind: Annotated[
        Literal["notebook", "workspace", "terminal"],
        Field(
            description="notebook: a Jupyter server, whose kernels can be asked. workspace: another program with a "
            "port. terminal: a command on somebody's terminal"
        ),
    ]
    ingress: Annotated[
        bool,
        Field(
            description="Reach it by an Ingress, at the address that `defaults.sessions.ingress` gives; its tenant "
            "needs the grant `session_ingress`"
        ),
    ] = later(False)
