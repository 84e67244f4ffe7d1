"""
The opening of the demo: one special node, three jobs that want it, and an urgent one that comes while the second runs.

What is told comes from a durable subscriber of the tenant's events, like everything that a person could see.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tessera.client.sending.sdk import Tessera
from tessera.kernel.ports import Clock
from tessera_local.cluster.machines.behaviour import CHECKPOINT_SECONDS, RUN_SECONDS
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_schemas.base import job_id
from tessera_schemas.config import Queue
from tessera_schemas.events import (
    CloudEvent,
    JobCancelledV1,
    JobEvictingV1,
    JobFailedV1,
    JobRequeuedV1,
    JobRunningV1,
    JobSucceededV1,
    JobWaitingV1,
)
from tessera_schemas.job import CheckpointPolicy, JobSpec, Resources, Role, Template
from tessera_schemas.reasons import PublicReason

NODE = NodeRow(name="my-precious", cpu="2", memory="8Gi", pool="precious", labels={"node-type": "my-precious"})
LINE = Queue(name="precious", pool="precious")
LISTENER = "story"
CALM, URGENT = ("test1", "test2", "test3"), "test-p1"
RUNS_SECONDS = 3.0
URGENT_AFTER_SECONDS = 1.0
STORY_SECONDS = 60.0  # a machine may be slow; then the story goes on without its end
LOOK_SECONDS = 0.05
CHART_WIDTH = 64
WAITS, RUNS, STOPS, ENDED = "waits", "runs", "stops", "ended"
SIGNS = {WAITS: "·", RUNS: "█", STOPS: "▒"}
OVER = (JobSucceededV1.type, JobFailedV1.type, JobCancelledV1.type)


def special(name: str, priority_class: str = "normal") -> JobSpec:
    """A job that needs the whole special node for a while and saves its work as it goes."""
    notes = {RUN_SECONDS: f"{RUNS_SECONDS:g}", CHECKPOINT_SECONDS: "0.2"}
    role = Role(
        name="main",
        resources=Resources(cpu_milli=2000, memory_bytes=2**30),
        node_selector={"node-type": "my-precious"},
        template=Template(image="train:1", annotations=notes),
    )
    return JobSpec(
        name=name,
        queue=LINE.name,
        priority_class=priority_class,
        roles=(role,),
        checkpoint=CheckpointPolicy(interval_seconds=1),
        ttl_seconds_after_finished=0,
    )


@dataclass(slots=True)
class Track:
    """One job as its events tell it: what it did from when on, in seconds since the story began."""

    name: str
    steps: list[tuple[float, str]] = field(default_factory=list)

    @property
    def now(self) -> str:
        """State of the job since the last step; "" before the first."""
        return self.steps[-1][1] if self.steps else ""

    def step(self, at: float, what: str) -> None:
        """Note that from `at` seconds on the job does `what`; repetitions and steps after the end are left out."""
        if self.now not in (what, ENDED):
            self.steps.append((at, what))

    def chart(self, until: float) -> str:
        """The track as one line of signs."""
        signs = [" "] * CHART_WIDTH
        ends = [at for at, _ in self.steps[1:]] + [until]
        for (at, what), end in zip(self.steps, ends, strict=True):
            first, last = (int(CHART_WIDTH * t / max(until, 0.001)) for t in (at, end))
            for column in range(first, min(max(last, first + 1), CHART_WIDTH)):
                signs[column] = SIGNS.get(what, " ")
        return "".join(signs).rstrip()


class DemoStory:
    """Call `run` once; `acknowledged` are the submits that were stored."""

    def __init__(self, tessera: Tessera, clock: Clock) -> None:
        self._tessera, self._clock, self._began = tessera, clock, clock.monotonic()
        self._tracks: dict[str, Track] = {}
        self.acknowledged: list[tuple[str, str]] = []

    async def run(self) -> bool:
        """False when it did not come to its end in time."""
        print("\nFirst a story. One special node, two CPUs. Three jobs want all of it.")
        listening = asyncio.ensure_future(self._listen())
        try:
            for name in CALM:
                await self._submit(special(name))
            ended = await self._until("test2", RUNS)
            await self._clock.sleep(URGENT_AFTER_SECONDS)
            self._print(URGENT, "is submitted while test2 runs, with priority class urgent")
            await self._submit(special(URGENT, "urgent"))
            for name in (*CALM, URGENT):
                ended = await self._until(name, ENDED) and ended
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        print("\n".join(chart(self._tracks, self._seconds())), flush=True)
        return ended

    async def _submit(self, spec: JobSpec) -> None:
        key = f"story-{spec.name}"
        self._tracks[job_id(self._tessera.shard, self._tessera.tenant, key)] = Track(spec.name)
        await self._tessera.submit(spec, key)
        self.acknowledged.append((self._tessera.tenant, key))

    async def _listen(self) -> None:
        async for event in self._tessera.subscribe(LISTENER):
            track = self._tracks.get(str(event.data.get("job_id", "")))
            if track is not None:
                self._take(track, event)

    def _take(self, track: Track, event: CloudEvent) -> None:
        what, text = _describe(event)
        if what and what != track.now:
            track.step(self._seconds(), what)
            self._print(track.name, text)

    async def _until(self, name: str, what: str) -> bool:
        until = self._began + STORY_SECONDS
        while not any(track.name == name and track.now == what for track in self._tracks.values()):
            if self._clock.monotonic() > until:
                return False
            await self._clock.sleep(LOOK_SECONDS)
        return True

    def _seconds(self) -> float:
        return self._clock.monotonic() - self._began

    def _print(self, name: str, text: str) -> None:
        print(f"{self._seconds():5.1f} s  {name:8} {text}"[:79], flush=True)


def _describe(event: CloudEvent) -> tuple[str, str]:
    """State of the job after this event, and the sentence for it; "" for events that the story leaves out."""
    if event.type == JobRunningV1.type:
        attempt = JobRunningV1.model_validate(event.data).attempt
        return RUNS, "runs" if attempt == 1 else f"runs again, attempt {attempt}, from its last checkpoint"
    if event.type == JobEvictingV1.type:
        return STOPS, f"is stopped ({_why(event)[0]}); its work is saved first"
    if event.type == JobRequeuedV1.type:
        return WAITS, "is back in its queue"
    if event.type == JobWaitingV1.type:
        code, sentence = _why(event)
        return WAITS, f"waits ({code}): {sentence}"
    return (ENDED, event.type.split(".")[-2]) if event.type in OVER else ("", "")


def _why(event: CloudEvent) -> tuple[str, str]:
    """The reason's code, and what it means in general."""
    reason = PublicReason.model_validate(event.data.get("reason", {"code": "?"}))
    return reason.code, PublicReason(code=reason.code).sentence().removeprefix(f"{reason.code}: ")


def chart(tracks: Mapping[str, Track], until: float) -> Iterator[str]:
    """All tracks below each other, and what the signs mean."""
    yield ""
    yield from (f"  {track.name:8} {track.chart(until)}" for track in tracks.values())
    yield f"  {'':8} {' '.join(f'{sign} {what}' for what, sign in SIGNS.items())}   {until:.1f} s"
    yield ""
