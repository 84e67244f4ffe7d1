"""The demo's picture: the tenant's events folded into phases, GPUs taken and the last lines. No other source."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.client.views.rendering import local_of
from tessera_schemas.events import (
    CloudEvent,
    JobAdmittedV1,
    JobAllocatedV1,
    JobBindingV1,
    JobBoundV1,
    JobCancelledV1,
    JobEvictingV1,
    JobFailedV1,
    JobRefusedV1,
    JobReleasedV1,
    JobRequeuedV1,
    JobRunningV1,
    JobSucceededV1,
    short_type,
)
from tessera_schemas.reasons import PublicReason
from tessera_schemas.work.placement import Placement

WAITING, STARTING, RUNNING, STOPPING = "waiting", "starting", "running", "stopping"
SUCCEEDED, FAILED, REFUSED = "succeeded", "failed", "refused"
SHOWN = (WAITING, STARTING, RUNNING, STOPPING, SUCCEEDED, FAILED, REFUSED)
ENDED = frozenset({SUCCEEDED, FAILED, REFUSED})
"""A job that is cancelled counts as failed: nobody cancels here."""

PHASE_AFTER: Mapping[str, str] = {
    JobAdmittedV1.type: WAITING,
    JobRefusedV1.type: REFUSED,
    JobAllocatedV1.type: STARTING,
    JobBindingV1.type: STARTING,
    JobBoundV1.type: STARTING,
    JobRunningV1.type: RUNNING,
    JobEvictingV1.type: STOPPING,
    JobRequeuedV1.type: WAITING,
    JobSucceededV1.type: SUCCEEDED,
    JobFailedV1.type: FAILED,
    JobCancelledV1.type: FAILED,
}
RATE_SECONDS = 2.0
LINES = 4


@dataclass(frozen=True, slots=True)
class NodeShape:
    name: str
    model: str
    gpus: int


class Picture:
    """`take` every event in order; the rest is there to be looked at."""

    def __init__(self, nodes: Sequence[NodeShape], now: Callable[[], float]) -> None:
        self.nodes, self._now = nodes, now
        self.phases: dict[str, str] = {}
        self.reasons: Counter[str] = Counter()
        self.taken: Counter[tuple[str, int]] = Counter()
        self.allocated = self.evicted = self.events = self.last_n = 0
        self.lines: deque[str] = deque(maxlen=LINES)
        self._held: dict[str, tuple[Placement, ...]] = {}
        self._times: deque[float] = deque()

    @property
    def counts(self) -> Counter[str]:
        """Number of jobs per phase, as far as events and refused submits tell."""
        return Counter(self.phases.values())

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    @property
    def gpus_taken_percent(self) -> int:
        """Percent of all GPUs that jobs hold, rounded down; a shared GPU counts by its shares."""
        return sum(self.taken.values()) // (10 * max(1, self.gpus))

    @property
    def events_per_second(self) -> float:
        """Rate over the last two seconds."""
        now = self._now()
        while self._times and self._times[0] < now - RATE_SECONDS:
            self._times.popleft()
        return len(self._times) / RATE_SECONDS

    def ended(self, job_id: str) -> bool:
        """Say whether the job succeeded, failed or was refused."""
        return self.phases.get(job_id) in ENDED

    def refuse(self, job_id: str) -> None:
        """The answer to a submit; of many refusals at once, not each has an event of its own."""
        self.phases[job_id] = REFUSED

    def take(self, event: CloudEvent) -> None:
        """Fold in the tenant's next event; events must come in order."""
        self.events += 1
        self.last_n = int(event.sequence)
        self._times.append(self._now())
        job_id = str(event.data.get("job_id", ""))
        if event.type in PHASE_AFTER:
            self.phases[job_id] = PHASE_AFTER[event.type]
        if event.type == JobAllocatedV1.type:
            self._hold(job_id, JobAllocatedV1.model_validate(event.data).placements)
        elif event.type == JobEvictingV1.type:
            self.evicted += 1
        elif event.type == JobReleasedV1.type:
            self._release(job_id)
        elif event.type == JobRefusedV1.type:
            self.reasons.update(str(reason.code) for reason in JobRefusedV1.model_validate(event.data).reasons)
        self.lines.append(self._line(event))

    def _hold(self, job_id: str, placements: tuple[Placement, ...]) -> None:
        self.allocated += 1
        self._held[job_id] = placements
        for place in placements:
            for device in place.devices:
                self.taken[place.node, device] += place.gpu_milli

    def _release(self, job_id: str) -> None:
        for place in self._held.pop(job_id, ()):
            for device in place.devices:
                self.taken[place.node, device] -= place.gpu_milli

    def _line(self, event: CloudEvent) -> str:
        what = short_type(event.type).removesuffix(".v1")
        line = f"{local_of(event.time):%H:%M:%S}  {what:13}  {event.data.get('name', '')}"
        places = self._held.get(str(event.data.get("job_id", "")), ())
        if event.type == JobAllocatedV1.type:
            nodes = list(dict.fromkeys(place.node for place in places))
            pods = f"{len(places)} pods" if len(places) > 1 else "1 pod"
            line += f" → {pods} on {', '.join(nodes)}"
        elif "reason" in event.data:
            line += f": {PublicReason.model_validate(event.data['reason']).brief()}"
        return line
