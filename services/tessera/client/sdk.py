"""
The SDK.

    async with Tessera.connect() as tessera:
        job = await tessera.submit(spec, key="nightly-2026-11-21")

    async with Tessera.connect() as tessera:
        async for event in tessera.subscribe("billing"):
            book(event)                      # acknowledged once the body ran; again after a crash
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tessera.client import where
from tessera.client.keys import choose_key
from tessera.client.outcomes import Refused
from tessera.kernel.clock import SystemClock
from tessera.kernel.ids import random_key
from tessera_schemas import subjects
from tessera_schemas.base import Strict, job_id
from tessera_schemas.commands import ANSWER_SECONDS, CancelJob, HoldJob, ReleaseJob, SubmitJob
from tessera_schemas.job import JobSpec
from tessera_schemas.reading import read_tenant_command, too_large

if TYPE_CHECKING:  # what connecting needs is imported when somebody connects, what listens when somebody listens
    from tessera.client.watching import Subscription, Watch
    from tessera.kernel.messaging.requests import Asking
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential

Say = Callable[[str], None]
UNUSED = "unused"
"""Stands for the key of a command that is only read yet."""


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The submit is stored and will not be lost. `admitted` is False while admission has not answered yet."""

    job_id: str
    key: str
    admitted: bool


class Tessera:
    """One tenant's connection to a shard."""

    def __init__(self, bus: "NatsBus", asking: "Asking", shard: str, tenant: str) -> None:
        self._bus, self._asking, self.shard, self.tenant = bus, asking, shard, tenant
        self._open: list[Subscription] = []

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, tenant: str | None = None, *, home: Path | None = None, shard: str | None = None
    ) -> AsyncIterator["Tessera"]:
        """
        Connect as a tenant: the only one there is, unless named.

        `home` is a local platform's directory; without it TESSERA_NATS_URL and TESSERA_CREDENTIALS_FILE count, then
        TESSERA_HOME, then `.tessera`. `shard` is needed where there is more than one. Raises Failure or StartupError in
        one sentence.
        """
        place = where.find(home, shard=shard)
        async with cls.at(place, place.tenant(tenant)) as tessera:
            yield tessera

    @classmethod
    @asynccontextmanager
    async def at(cls, place: where.Where, credential: "Credential") -> AsyncIterator["Tessera"]:
        """Connects with one credential to the shard of `place`; subscriptions still open are closed at the end."""
        from tessera.kernel.messaging.requests import Asking

        async with place.bus(credential) as bus:
            name = credential.identity.name
            tessera = cls(bus, await Asking.open(bus, name), place.shard, name)
            try:
                yield tessera
            finally:
                for subscription in tessera._open:
                    await subscription.close()

    async def submit(
        self,
        spec: JobSpec | Mapping[str, Any],
        key: str | None = None,
        *,
        held: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        say: Say = _to_stderr,
    ) -> Submitted:
        """
        Submit a job once, however often this is called with the same key; `held`: it waits until it is released.

        Without a key, one is made from the CI run, or at random and said before anything is sent, so that a caller
        that dies can go on with it. The publish is repeated until it is stored. Raises Refused with all reasons; a spec
        that does not read well or is too large is refused here, and nothing is sent.
        """
        said = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else dict(spec)
        asked = {"kind": "submit_job", "spec": said, "held": held}
        return await self.send(asked, key, answer_seconds=answer_seconds, publish_seconds=publish_seconds, say=say)

    async def submit_template(
        self,
        template: str,
        parameters: Mapping[str, str | int] | None = None,
        key: str | None = None,
        *,
        overrides: Mapping[str, str] | None = None,
        held: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        say: Say = _to_stderr,
    ) -> Submitted:
        """
        Submit what a template of the configuration makes of these parameters; else as `submit`.

        `overrides` are `name`, `queue` and `priority_class`, as far as the template lets them be said.
        """
        told = {"template": template, "parameters": dict(parameters or {}), "held": held, **(overrides or {})}
        asked = {"kind": "submit_template", **told}
        return await self.send(asked, key, answer_seconds=answer_seconds, publish_seconds=publish_seconds, say=say)

    async def send(
        self,
        asked: Mapping[str, Any],
        key: str | None = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        say: Say = _to_stderr,
    ) -> Submitted:
        """Send a submit as the contract writes it, without its key; else as `submit`."""
        read, chosen = read_submit(asked, key, say)
        command: Strict = type(read).model_validate({**dict(read), "key": chosen, "tenant": self.tenant})
        job = job_id(self.shard, self.tenant, chosen)
        if (size := len(command.to_bytes())) > subjects.SUBMIT_BYTES_MAX:
            raise Refused((too_large(size),), job)
        answer = await self._asking.ask(
            subjects.submit(self.shard, self.tenant),
            command,
            answer_seconds=answer_seconds,
            publish_seconds=publish_seconds,
        )
        if answer is not None and not answer.accepted:
            raise Refused(answer.reasons, answer.job_id)
        return Submitted(job, chosen, answer is not None)

    async def checkpoint(self, job: str, path: str, attempt: int = 0, at: str = "") -> None:
        """
        Say that the job's program has saved its work at `path`: stopping it now loses only what comes after.

        `attempt` is the run's TESSERA_ATTEMPT; 0: whichever runs. A path is new once per run: who saves in the same
        place again gives another `at`, such as the step. Raises Refused.
        """
        told = {"job_id": job, "path": path, "attempt": attempt, "tenant": self.tenant, "at": at}
        await self._order(_read({"kind": "report_checkpoint", **told}), job)

    async def cancel(self, job: str, why: str = "", now: bool = False) -> None:
        """
        Ask for a job of this tenant to be cancelled; returns once the request is stored. Raises Refused.

        With `now` it gets no checkpoint notice, nor what is left of one: SIGTERM and the grace after it remain.
        """
        await self._order(CancelJob(kind="cancel_job", v=1, job_id=job, tenant=self.tenant, why=why, now=now), job)

    async def hold(self, job: str) -> None:
        """Ask that a job of this tenant does not start (again) until it is released. Raises Refused."""
        await self._order(HoldJob(kind="hold_job", v=1, job_id=job, tenant=self.tenant), job)

    async def release(self, job: str) -> None:
        """Ask that a held job of this tenant may start. Raises Refused."""
        await self._order(ReleaseJob(kind="release_job", v=1, job_id=job, tenant=self.tenant), job)

    async def _order(self, command: Strict, job: str) -> None:
        answer = await self._asking.ask(subjects.submit(self.shard, self.tenant), command)
        if answer is not None and not answer.accepted:
            raise Refused(answer.reasons, job)

    def subscribe(self, name: str) -> "Subscription":
        """
        The events of a durable subscriber that the tenant's configuration declares: each at least once, in order.

        An event counts as handled when the next one is asked for. What was not handled before a close, a crash or a
        lost connection comes again, and may then come behind newer events: compare `sequence` and `id`.
        """
        from tessera.client.watching import Subscription

        durable = subjects.subscriber_durable(self.tenant, name)
        subscription = Subscription(self._bus.work(subjects.stream("EVENTS", self.shard), durable))
        self._open.append(subscription)
        return subscription

    async def watch(self) -> "Watch":
        """Listen to the tenant's events from now on, at most once; to wait for a job, begin before submitting it."""
        from tessera.client.watching import Watch

        return await Watch.open(self._bus, self.shard, self.tenant, SystemClock())


def submit(
    spec: JobSpec | Mapping[str, Any],
    key: str | None = None,
    *,
    tenant: str | None = None,
    home: Path | None = None,
    shard: str | None = None,
) -> Submitted:
    """
    `Tessera.submit` for a script that is not asynchronous; connects for this one call.

    In a notebook, where a loop runs already, the call has a thread of its own and the loop waits for it.
    """

    async def once() -> Submitted:
        async with Tessera.connect(tenant, home=home, shard=shard) as tessera:
            return await tessera.submit(spec, key)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(once())
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, once()).result()


def read_submit(asked: Mapping[str, Any], key: str | None, say: Say) -> tuple[Any, str]:
    """
    A submit as the contract reads it, and the key to send it under: the one given, else one from the CI run, else a
    random one, which is said first. Raises Refused with all reasons.
    """
    read = _read(asked)
    name = read.spec.name if isinstance(read, SubmitJob) else read.name or read.template
    chosen = choose_key(key, name, os.environ, random_key)
    if chosen.source == "random":
        say(f"key {chosen.key}")
    return read, chosen.key


def _read(command: Mapping[str, Any]) -> Any:
    """Read here as strictly as admission will, so that mistakes are told before anything is sent. Raises Refused."""
    keyed = {"key": UNUSED} if str(command["kind"]).startswith("submit") else {}
    parsed = read_tenant_command(orjson.dumps({"v": 1, **keyed, **command}))
    if parsed.command is None:
        raise Refused(parsed.reasons)
    return parsed.command
