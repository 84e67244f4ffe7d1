"""
The SDK; `SyncTessera` is the same for programs that are not asynchronous.

    async with Tessera.connect() as tessera:
        sent = await tessera.submit({"name": "train", "gpus": 8, ...}, key="nightly-2026-11-21")
        ended = await tessera.wait(sent.job_id)

    async with Tessera.connect() as tessera:
        async for event in tessera.subscribe("billing"):
            book(event)                      # acknowledged once the body ran; again after a crash
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.client.outcomes import Exit, Failure, Refused, Submitted
from tessera.client.sending.keys import choose_key
from tessera.kernel.clock import SystemClock
from tessera.kernel.ids import random_key
from tessera_schemas import subjects
from tessera_schemas.subjects import ANSWER_SECONDS

if TYPE_CHECKING:  # the models when a job is sent, what connecting needs when somebody connects, and so on
    from tessera.client.connect.api import Api
    from tessera.client.connect.shard_views import ShardViews
    from tessera.client.connect.where import Where
    from tessera.client.sending.submits import Sender
    from tessera.client.sending.watching import SubmitWatch, Subscription, Watch
    from tessera.kernel.messaging.requests import Requester
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential
    from tessera_schemas.events import CloudEvent
    from tessera_schemas.job import JobSpec
    from tessera_schemas.reasons import PublicReason
    from tessera_schemas.views import JobView
    from tessera_schemas.work.arrays import Dependency

Notify = Callable[[str], None]
LOOK_SECONDS = 0.5
AT_ONCE = 32
"""Submits that one `submit_many` has under way."""


def to_stderr(text: str) -> None:
    """Say something to a person beside what a program prints."""
    print(text, file=sys.stderr)


class Tessera:
    """
    One tenant's connection to a shard, by NATS or by HTTP.

    By NATS it sends commands and has durable subscribers, and gets a token of minutes for the HTTP API, by which jobs
    are read. By HTTP `tenant` is "": the token says whose it is.
    """

    def __init__(
        self, place: "Where", tenant: str = "", bus: "NatsBus | None" = None, asking: "Requester | None" = None
    ) -> None:
        self.shard, self.tenant = place.shard, tenant
        self._place, self._bus, self._asking = place, bus, asking
        self._open: list[Subscription] = []
        self._words: SubmitWatch | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        tenant: str | None = None,
        *,
        home: Path | None = None,
        shard: str | None = None,
        context: str | None = None,
    ) -> AsyncIterator["Tessera"]:
        """
        Connect as a tenant: the only one there is, unless named.

        `home` is a local platform's directory, `context` a login of `tessera login`. Without them TESSERA_NATS_URL and
        TESSERA_CREDENTIALS_FILE count, then TESSERA_API, TESSERA_HOME, the login in use, and `.tessera`. `shard` is
        needed where there is more than one. Raises Failure or StartupError in one sentence.
        """
        from tessera.client.connect.locating import find

        place = find(home, shard=shard, context=context)
        by_http = place.login is not None and not place.nats_url and (tenant is None or not place.can_be(tenant))
        if by_http and tenant is not None:
            from tessera.client.connect.connecting import check_token_of

            await check_token_of(place, tenant)
        async with cls.at(place, None if by_http else place.tenant(tenant)) as tessera:
            yield tessera

    @classmethod
    @asynccontextmanager
    async def at(cls, place: "Where", credential: "Credential | None") -> AsyncIterator["Tessera"]:
        """
        Connects to the shard of `place` with one credential, or with the token of its login when there is none.

        Subscriptions that are still open are closed at the end.
        """
        if credential is None:
            yield cls(place)
            return
        from tessera.client.connect.connecting import open_bus
        from tessera.kernel.messaging.requests import Requester

        async with open_bus(place, credential) as bus:
            name = credential.identity.name
            tessera = cls(place, name, bus, await Requester.open(bus, name))
            try:
                yield tessera
            finally:
                for subscription in tessera._open:
                    await subscription.close()

    async def submit(
        self,
        spec: "JobSpec | Mapping[str, Any]",
        key: str | None = None,
        *,
        held: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        notify: Notify = to_stderr,
    ) -> Submitted:
        """
        Submit a job once, however often this is called with the same key; `held`: it waits until it is released.

        A spec may be in the short form of job files. Without a key, one is made from the CI run, or at random and said
        before anything is sent, so that a caller that dies can go on with it. The publish is repeated until it is
        stored, and the ledger's word is waited for (`Submitted.state`). Raises Refused with all reasons: those found
        here, all else that admission finds, and what only the ledger knows.
        """
        from tessera.client.sending.job_input import read_spec

        full, against = read_spec(spec)
        return await self.send(
            {"kind": "submit_job", "spec": full, "held": held},
            key,
            answer_seconds=answer_seconds,
            publish_seconds=publish_seconds,
            notify=notify,
            against=against,
        )

    async def rerun(
        self,
        job: str,
        key: str | None = None,
        *,
        changes: Mapping[str, Any] | None = None,
        held: bool = False,
        notify: Notify = to_stderr,
    ) -> Submitted:
        """
        Submit the spec of a job, live or ended, again as a new job; of an array's task that task alone.

        `changes` are other values by their path in the spec, such as `roles.worker.resources.gpus`. Without a key, one
        is made at random and said before anything is sent. Else as `submit`; raises Refused, too, where the spec is
        kept no more.
        """
        from tessera.client.sending.rerunning import apply_changes, find_spec

        spec, _ = await find_spec(self._place, self.tenant or None, job)
        if key is None:
            notify(f"key {(key := random_key())}")
        return await self.submit(apply_changes(spec, changes or {}), key, held=held, notify=notify)

    async def dry_run(
        self, spec: "JobSpec | Mapping[str, Any]", key: str | None = None, *, answer_seconds: float = ANSWER_SECONDS
    ) -> str:
        """
        Ask whether the job would be admitted now; nothing is taken in. Returns the id that it would have by this key.

        Raises Refused with all reasons, and Transient when admission has not answered.
        """
        from tessera.client.sending.job_input import read_spec

        full, against = read_spec(spec)
        return await self.judge({"kind": "submit_job", "spec": full}, key, answer_seconds, against)

    async def judge(
        self,
        asked: Mapping[str, Any],
        key: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        against: "Sequence[PublicReason]" = (),
    ) -> str:
        """
        Like `dry_run`, for a command in wire form.

        Raises Refused with `against` and every reason that admission finds.
        """
        return await self._sender().judge(asked, key, answer_seconds, against)

    async def submit_many(
        self, specs: "Sequence[JobSpec | Mapping[str, Any]]", key: str | None = None, *, held: bool = False
    ) -> "Sequence[Submitted | Refused]":
        """
        Submit jobs side by side; what became of each, in their order.

        The job at index 3 has the key `KEY-3`: the call may be repeated with the same key and the same jobs. Raises
        Failure or Transient when it could not be said of one; then repeat it.
        """
        base = choose_key(key, "", {}, random_key).key
        if key is None and specs:
            to_stderr(f"keys {base}-0 to {base}-{len(specs) - 1}")
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(at: int, spec: "JobSpec | Mapping[str, Any]") -> Submitted | Refused:
            async with gate:
                try:
                    return await self.submit(spec, f"{base}-{at}", held=held)
                except Refused as refused:
                    return refused

        async with asyncio.TaskGroup() as group:
            going = [group.create_task(one(at, spec)) for at, spec in enumerate(specs)]
        return [task.result() for task in going]

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
        notify: Notify = to_stderr,
    ) -> Submitted:
        """
        Submit what a template of the configuration makes of these parameters; else as `submit`.

        `overrides` are `name`, `queue` and `priority_class`, as far as the template lets them be said.
        """
        fields = {"template": template, "parameters": dict(parameters or {}), "held": held, **(overrides or {})}
        asked = {"kind": "submit_template", **fields}
        return await self.send(
            asked, key, answer_seconds=answer_seconds, publish_seconds=publish_seconds, notify=notify
        )

    async def send(
        self,
        asked: Mapping[str, Any],
        key: str | None = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        notify: Notify = to_stderr,
        against: "Sequence[PublicReason]" = (),
    ) -> Submitted:
        """Like `submit`, for a command in wire form. Raises Refused with `against`, if given."""
        more: dict[str, Any] = {"answer_seconds": answer_seconds, "publish_seconds": publish_seconds, "notify": notify}
        return await self._sender().send(asked, key, against=against, **more)

    def _sender(self) -> "Sender":
        from tessera.client.sending.submits import Sender

        by_api = self._api if self._asking is None else None
        return Sender(self.shard, self.tenant, self._asking, self._submit_words, by_api)

    async def _submit_words(self) -> "SubmitWatch":
        """Listens to the ledger's words about submits from the first one on."""
        from tessera.client.sending.watching import SubmitWatch

        if self._words is None:
            assert self._bus is not None
            self._words = await SubmitWatch.open(self._bus, self.shard, self.tenant, SystemClock())
        return self._words

    async def checkpoint(self, job: str, path: str, attempt: int = 0, at: str = "") -> None:
        """
        Say that the job's program has saved its work at `path`: stopping it now loses only what comes after.

        `attempt` is the run's TESSERA_ATTEMPT; 0: whichever runs. The same path within a minute is the same
        checkpoint, unless its `at`, such as the step, is another. Raises Refused.
        """
        await self._order(job, "report_checkpoint", path=path, attempt=attempt, at=at)

    async def answer_move(self, job: str, accept: bool, attempt: int = 0) -> None:
        """
        Say whether the job's run, which is asked to move (`job.move-offered`), does so, or stays where it is.

        `attempt` is the run's TESSERA_ATTEMPT; 0: whichever runs. A later answer counts, until the run is stopped.
        Raises Refused.
        """
        await self._order(job, "answer_move", accept=accept, attempt=attempt)

    async def tell_dataset(
        self, name: str, *, size_bytes: int = 0, nodes: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """
        Say which nodes have a data set of this tenant, with its size, and which have it no more. Raises Refused.

        Nothing is said of other nodes. A word counts as a use of the data set: tell again, before a week is over.
        """
        from tessera_schemas.commands import TellDataset

        said = {"size_bytes": size_bytes, "nodes": tuple(nodes), "gone": tuple(gone)}
        told = TellDataset.model_validate({"kind": "tell_dataset", "v": 1, "dataset": name, **said})
        if self._asking is None:
            from tessera.client.sending.sending_by_api import tell_by_api

            await tell_by_api(self._api(), name, told)
            return
        answer = await self._asking.ask(subjects.submit(self.shard, self.tenant), told)
        if answer is not None and not answer.accepted:
            raise Refused(answer.reasons)

    async def report_health(
        self, node: str, ailments: Sequence[Mapping[str, str]] = (), *, source: str | None = None
    ) -> None:
        """
        Say all that is wrong with a node now, through the gateway; nothing: it is well. Raises Refused, Failure.

        An ailment is `{"cause": "link_errors"}`, with `evidence` and `device` if need be. Needs an operator's token, or
        one for health, which says the `source` by itself.
        """
        from tessera.client.sending.sending_by_api import report_by_api

        await report_by_api(self._api(), node, ailments, source)

    async def cancel(self, job: str, why: str = "", now: bool = False) -> None:
        """
        Ask for a job of this tenant, by its id, to be cancelled; returns once the request is stored. Raises Refused.

        With `now` it gets no checkpoint notice, nor what is left of one: SIGTERM and the grace after it remain.
        """
        await self._order(job, "cancel_job", why=why, now=now)

    async def hold(self, job: str) -> None:
        """Ask that a job of this tenant, by its id, does not start (again) until it is released. Raises Refused."""
        await self._order(job, "hold_job")

    async def release(self, job: str) -> None:
        """Ask that a held job of this tenant, by its id, may start. Raises Refused."""
        await self._order(job, "release_job")

    async def set_priority(self, job: str, priority_class: str) -> None:
        """Ask that a job, by its id, gets another priority class, of those granted to its tenant. Raises Refused."""
        await self._order(job, "set_priority", priority_class=priority_class)

    async def move(self, job: str, queue: str) -> None:
        """Ask that a waiting job, by its id, waits in another queue, one that the tenant may use. Raises Refused."""
        await self._order(job, "move_job", queue=queue)

    async def update(
        self,
        job: str,
        *,
        time_limit_seconds: int | None = None,
        after: "Sequence[Dependency | Mapping[str, Any]] | None" = None,
        begin_ts: int | None = None,
        name: str | None = None,
    ) -> None:
        """
        Ask that fields of a job, by its id, get other values: what waits, all; a run, at most a lower time limit.

        None stays as it is. A `time_limit_seconds` of 0 is none, an empty `after` waits for no job, and a `begin_ts` of
        0, else milliseconds since the epoch, lets it start as soon as it may. Raises Refused.
        """
        waits = None if after is None else [each if isinstance(each, Mapping) else each.model_dump() for each in after]
        said = {"time_limit_seconds": time_limit_seconds, "after": waits, "begin_ts": begin_ts, "name": name}
        await self._order(job, "update_job", **{field: value for field, value in said.items() if value is not None})

    async def requeue(self, job: str) -> None:
        """
        Ask that the run of a job, by its id, is stopped, with its notice, and the job put back in line; no attempt is
        spent. Raises Refused.
        """
        await self._order(job, "requeue_job")

    async def scale(self, job: str, replicas: int) -> None:
        """Ask that a service, by its id, has so many replicas, from its minimum to its maximum. Raises Refused."""
        await self._order(job, "scale_service", replicas=replicas)

    async def roll(
        self,
        job: str,
        spec: "JobSpec | Mapping[str, Any] | None" = None,
        *,
        image: str | None = None,
        programs: Mapping[str, Mapping[str, Any]] | None = None,
        undo: bool = False,
        pace: Mapping[str, int] | None = None,
    ) -> None:
        """
        Ask that the replicas of a service, by its id, get another program, one after the other, through the gateway.

        Either its whole `spec`, in which programs differ, an `image`, fields of `programs` by role, or `undo` for those
        before. `pace` is `max_surge`, `max_unavailable` and `min_ready_seconds`. Raises Refused, Failure.
        """
        from tessera.client.connect.api import path_of
        from tessera.client.sending.job_input import full_spec

        said = {"spec": None if spec is None else full_spec(spec), "image": image, "programs": programs}
        body = {name: value for name, value in said.items() if value is not None} | dict(pace or {})
        await self._api().post(path_of(job, "rollout"), body | ({"undo": True} if undo else {}))

    async def shift_roles(
        self, job: str, roles: Mapping[str, int], *, have: Mapping[str, int] | None = None, key: str | None = None
    ) -> None:
        """
        Ask that pods of a running job, by its id, move between its elastic roles: `{"trainer": -1, "rollout": 1}`.

        `have` are the sizes that the request was made for. A repeat with the same `key` changes nothing; without one
        each call is a request of its own. Raises Refused.
        """
        named = {"roles": dict(roles), "have": dict(have or {}), "key": key or random_key()}
        await self._order(job, "shift_roles", **named)

    async def resize(
        self,
        job: str,
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
        role: str | None = None,
        key: str | None = None,
    ) -> None:
        """
        Ask that each pod of a running job, by its id, has so much CPU and memory, in place; None stays as it is.

        Where the job has several roles, `role` says whose pods. Raises Refused.
        """
        size = {"cpu_milli": cpu_milli, "memory_bytes": memory_bytes, "role": role}
        await self._order(job, "resize_pods", **size, key=key or random_key())

    async def _order(self, job: str, kind: str, **fields: Any) -> None:
        from tessera.client.sending.job_input import read_command

        command = read_command({"kind": kind, "job_id": job, "tenant": self.tenant or None, **fields})
        if self._asking is None:
            from tessera.client.sending.sending_by_api import order_by_api

            await order_by_api(self._api(), command, job)
            return
        answer = await self._asking.ask(subjects.submit(self.shard, self.tenant), command)
        if answer is not None and not answer.accepted:
            raise Refused(answer.reasons, job)

    def _api(self) -> "Api":
        from tessera.client.connect.connecting import api_of

        return api_of(self._place, self.tenant or None)

    def _views(self) -> "ShardViews":
        from tessera.client.connect.shard_views import ShardViews

        return ShardViews(self._api())

    # -- reading

    async def get(self, job: str) -> "JobView":
        """A job by its id, the unique beginning of one, or its name. Raises Failure."""
        return await self._views().work(job)

    async def list(
        self, *, queue: str | None = None, name: str | None = None, phases: Sequence[str] = ()
    ) -> "Sequence[JobView]":
        """Jobs of this tenant that match: live ones first, then by age. No phases: all of them."""
        return await self._views().all_work(phases, queue=queue, name=name)

    async def wait(self, job: str | Submitted, seconds: float | None = None) -> "JobView":
        """
        The job once it has ended, by its name or id, or as it was submitted: then no earlier job of its key is meant.

        Raises TimeoutError after so many seconds; the job goes on.
        """
        from tessera.client.connect.shard_views import ENDED
        from tessera.client.sending.ordering import SEEN_SECONDS, poll

        found: dict[str, JobView] = {}
        name, number = (job, 0) if isinstance(job, str) else (job.job_id, job.number)
        clock = SystemClock()
        seen_by = clock.monotonic() + SEEN_SECONDS  # the views of a job that was just submitted are a moment behind

        async def has_ended() -> bool:
            try:
                found["job"] = await self.get(name)
            except Failure as failure:
                if failure.code is not Exit.NOT_FOUND or found or clock.monotonic() > seen_by:
                    raise
                return False
            return found["job"].phase in ENDED and number in (0, found["job"].number)

        if await poll(has_ended, seconds, LOOK_SECONDS):
            return found["job"]
        raise TimeoutError(f"job {name}: has not ended within {seconds:g} s")

    async def logs(
        self,
        job: str,
        *,
        rank: int = 0,
        attempt: int | None = None,
        follow: bool = False,
        tail: int = 0,
        since_seconds: int = 0,
    ) -> AsyncGenerator[str, None]:
        """Lines that a pod of a job has written, with `follow` those to come. Raises Failure where there are none."""
        from tessera.client.sending.job_logs import LogPart, lines_of, log_pieces

        part = LogPart(rank, attempt, follow, tail, since_seconds)
        async with aclosing(log_pieces(self._api(), await self.get(job), part)) as pieces:
            async for line in lines_of(pieces):
                yield line

    async def explain(self, job: str) -> dict[str, Any]:
        """Why a job stands where it stands, as `tessera explain -o json` prints it. Raises Failure."""
        from tessera.client.sending.explaining import explain_job

        return await explain_job(self._place, job, self.tenant or None)

    async def events(
        self, job: str | None = None, *, after: int | None = None, follow: bool = True
    ) -> "AsyncGenerator[CloudEvent, None]":
        """
        Public events of this tenant, or of one job by its id: those to come, or first those after the one with the
        number `after` (0: all that are kept). Without `follow` it ends with the newest that is stored, and begins with
        the first where `after` is not said. On NATS only those to come.
        """
        if self._bus is None or self._place.login is not None or after is not None or not follow:
            from tessera.client.connect.api import events_by_api

            async for event in events_by_api(self._api(), job, after=after, follow=follow):
                yield event
            return
        watch = await self.watch()
        while True:
            event = await watch.events.get()
            if job in (None, event.data.get("job_id")):
                yield event

    def subscribe(self, name: str) -> "Subscription":
        """
        The events of a durable subscriber that the tenant's configuration declares: each at least once, in order.

        An event counts as handled when the next one is asked for. What was not handled before a close, a crash or a
        lost connection comes again, and may then come behind newer events: compare `sequence` and `id`. Raises Failure
        when the next event is asked for and there is no such subscriber.
        """
        from tessera.client.sending.watching import Subscription

        if self._bus is None:
            raise Failure(
                Exit.USAGE, f"subscriber {name}: durable subscribers need NATS; by HTTP, use `events(after=…)`"
            )
        bus, stream = self._bus, subjects.stream("EVENTS", self.shard)
        durable = subjects.subscriber_durable(self.tenant, name)

        async def check() -> None:
            if await bus.lacks(stream, durable):
                raise Failure(
                    Exit.NOT_FOUND,
                    f"subscriber {name}: the configuration declares none for tenant {self.tenant}; add "
                    f"`subscribers: [{{name: {name}}}]` to the tenant (`tessera config show > config.yaml`), then "
                    "`tessera apply -f config.yaml`",
                )

        subscription = Subscription(bus.work(stream, durable), check)
        self._open.append(subscription)
        return subscription

    async def watch(self) -> "Watch":
        """Listen to the tenant's events from now on, at most once; to wait for a job, begin before submitting it."""
        from tessera.client.sending.watching import Watch

        if self._bus is None:
            raise Failure(Exit.USAGE, "watch: needs NATS; by HTTP, use `events`")
        return await Watch.open(self._bus, self.shard, self.tenant, SystemClock())
