"""`tessera apply` without its options: what would change, putting it in force, and what follows from it on the bus."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tessera.admission.decide.configuration import find_config_faults
from tessera.client.connect.connecting import open_bus
from tessera.client.connect.shard_status import why_views_lack
from tessera.client.connect.shard_views import ENDED, LIVE, ShardViews
from tessera.client.connect.where import Where
from tessera.client.input import files
from tessera.client.input.files import as_json
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.domain.work.live_names import LiveJob, find_stranded, lost_names
from tessera.domain.work.phases import Phase
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError, Transient
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.nats.once import connect_once
from tessera.kernel.provisioning.credential_files import Credential
from tessera.kernel.provisioning.credentials import ensure_identities, notifier_identity, reload_nats, tenant_identity
from tessera.kernel.provisioning.streams import ensure_subscribers, ensure_webhooks
from tessera_schemas import subjects
from tessera_schemas.base import Json
from tessera_schemas.commands import ApplyConfig
from tessera_schemas.config import Config, ConfigBody, Queue
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.recommended import Filled, explicit, filled
from tessera_schemas.text.reading import read_operator_command
from tessera_schemas.views import JobView
from tessera_schemas.work.arrays import task_count

POLL_SECONDS = 0.1
STRANDED_SECONDS = 1.0
"""How often we look whether jobs that have come since make the committer refuse what it was sent."""
SEEN_SECONDS = 0.1
"""From when we see a configuration in the views until admission surely does."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The configuration that is wanted, and the one in force that it was made from."""

    now: Config
    body: ConfigBody
    abandon: bool = False

    @property
    def command(self) -> ApplyConfig:
        """The order that puts it in force."""
        version = self.now.version
        return ApplyConfig(kind="apply_config", v=1, expected_version=version, body=self.body, abandon=self.abandon)

    @property
    def lines(self) -> list[str]:
        """A unified diff of both configurations; empty if they are equal."""
        old, new = _text(self.now.body), _text(self.body)
        return list(difflib.unified_diff(old, new, f"version {self.now.version}", "new", lineterm="", n=2))


@dataclass(frozen=True, slots=True)
class Read:
    """A configuration as a file says it, and what was written out because the file leaves it out."""

    body: ConfigBody
    filled: tuple[Filled, ...]
    version: int | None = None

    @property
    def lines(self) -> list[str]:
        """Values that were filled in, for people."""
        return [f"filled in: {_describe(found)}" for found in self.filled]

    def over(self, now: Config) -> "Read":
        """
        The configuration to apply in place of `now`: a queue whose file does not say `stop_policy` stays stopped.

        Raises Refused when the file names the version that it was made from, and that is not in force any more.
        """
        if self.version is not None and self.version != now.version:
            numbers = {"expected_version": self.version, "version": now.version}
            detail = "take `tessera config show` and make the change there, or delete the file's `version`"
            raise Refused((Reason(code=Code.CONFIG_CONFLICT, field="version", numbers=numbers, detail=detail),))
        stopped = {} if now.body is None else {q.name: q.stop_policy for q in now.body.queues}
        queues = tuple(_kept_stopped(queue, stopped) for queue in self.body.queues)
        kept = [new for old, new in zip(self.body.queues, queues, strict=True) if new is not old]
        added = [Filled(f"queues.{q.name}.stop_policy", q.stop_policy, "as it is in force") for q in kept]
        return Read(self.body.model_copy(update={"queues": queues}), (*self.filled, *added), self.version)


def _kept_stopped(queue: Queue, stopped: Mapping[str, Any]) -> Queue:
    """The queue, stopped as it or the one that it takes the place of is in force, unless its file says otherwise."""
    policy = stopped.get(queue.name, stopped.get(queue.was or "", "none"))
    if "stop_policy" in queue.model_fields_set or policy == "none":
        return queue
    return queue.model_copy(update={"stop_policy": policy})


def read_file(value: Json, where: str) -> Read:
    """
    A file's mapping, with recommended values where it says none. Raises Failure, or Refused with all reasons.

    `version` is the one that the file was made from, if it says so.
    """
    value = dict(value)
    version = value.pop("version", None)
    if version is not None and (type(version) is not int or version < 0):
        raise Failure(Exit.USAGE, f"{where}: version: must be the number of a version; see `tessera config show`")
    body, added = filled(files.config_body(value, where))
    return Read(read_body(body), added, version)


def named_by(jobs: Iterable[JobView]) -> Iterator[LiveJob]:
    """Names that live jobs of the views use, as the committer sees it in its state."""
    for job in jobs:
        if job.phase in ENDED:
            continue
        count = 1 if job.array is None else task_count(job.array.left) if job.array.left else 0
        name = "" if job.owner else job.priority_class
        yield LiveJob(job.queue, job.tenant, name, job.flavor, job.phase != Phase.QUEUED, count)


async def find_stranded_jobs(views: ShardViews, change: ConfigChange) -> list[Reason]:
    """Names that the change takes away although live jobs use them, by the views."""
    if not lost_names(change.now.body, change.body):
        return []  # there may be a hundred thousand jobs to read
    return find_stranded(named_by(await views.jobs(LIVE)), change.now.body, change.body)


def shown(body: ConfigBody) -> str:
    """The configuration as a file (YAML) that says the same when it is applied."""
    return yaml.safe_dump(explicit(body), sort_keys=False, allow_unicode=True)


def read_body(body: Json) -> ConfigBody:
    """Read as strictly as admission does. Raises Refused with all reasons."""
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body}
    parsed = read_operator_command(as_json(command))
    if not isinstance(parsed.command, ApplyConfig):
        raise Refused(parsed.reasons)
    against = find_config_faults(parsed.command.body)
    if against:
        raise Refused(tuple(against))
    return parsed.command.body


async def put_in_force(
    where: Where, operator: Credential, views: ShardViews, change: ConfigChange, seconds: float
) -> Config:
    """Propose it and wait until the views show it. Raises Refused, or Failure with CONFLICT or GAVE_UP."""
    clock = SystemClock()
    began = clock.monotonic()
    async with open_bus(where, operator) as bus:
        requester = await Requester.open(bus, operator.identity.name)
        answer = await requester.ask(subjects.control(where.shard), change.command, publish_seconds=seconds)
    if answer is not None and not answer.accepted:
        raise Refused(answer.reasons)
    look_at = began + STRANDED_SECONDS
    while clock.monotonic() - began < seconds:
        try:
            config = await views.config()
            if config.version > change.now.version:
                return await _judged(config, change, clock)
            if not change.abandon and clock.monotonic() > look_at:
                look_at += STRANDED_SECONDS
                if stranded := await find_stranded_jobs(views, change):
                    raise Refused(tuple(stranded))  # jobs that came meanwhile: the committer has refused it
        except Transient:
            pass
        await clock.sleep(POLL_SECONDS)
    why = await why_views_lack(where, seconds=0)
    raise Failure(
        Exit.GAVE_UP,
        f"configuration: sent, and not answered after {seconds:g} s{f' ({why})' if why else ''}; it is stored and will "
        "be judged once scheduler and projection run, and refused if another that was sent before has come into force: "
        "look with `tessera config show`",
    )


async def is_surely_in_force(where: Where, views: ShardViews, change: ConfigChange) -> bool:
    """
    Whether a configuration that the views show already surely is the newest, so that nothing changes by sending it.

    Otherwise another may be on its way, which this one is to undo: it is for the committer to judge by the version.
    """
    return not await why_views_lack(where) and (await views.config()).version == change.now.version


async def _judged(config: Config, change: ConfigChange, clock: SystemClock) -> Config:
    if config.body != change.body:
        raise Failure(
            Exit.CONFLICT,
            f"configuration: version {config.version} was applied meanwhile; read it and apply again",
        )
    await clock.sleep(SEEN_SECONDS)
    return config


async def provide(where: Where, operator: Credential, change: ConfigChange) -> list[str]:
    """
    Make what the configuration declares and NATS must know: tenants' identities, their subscribers and webhooks.

    Identities only where their directory is at hand: the local platform's, or the one that holds the operator's file.
    Returns what was made, in words.
    """
    made: list[str] = []
    body = change.body
    declared = {t.name: {s.name: s.types for s in t.subscribers} for t in body.tenants}
    directory = where.directory
    if directory is not None:
        known = {path.stem for path in directory.path.glob("*.json")}
        identities = [tenant_identity(tenant, names) for tenant, names in declared.items()]
        if ensure_identities(directory, [*identities, notifier_identity(body.tenants)]):
            made += [f"identity {tenant} ({directory.file(tenant)})" for tenant in declared if tenant not in known]
            pid = where.pids.get("nats")
            if pid is not None:
                await reload_nats(pid, where.nats_monitor_url, SystemClock())
            else:
                made.append(f"users in {directory.nats_file}: have nats-server load it again, so that they can connect")
    made += await _consumers(where, operator, declared, change)
    return made


async def _consumers(
    where: Where, operator: Credential, declared: Mapping[str, Mapping[str, Sequence[str]]], change: ConfigChange
) -> list[str]:
    tenants, before = change.body.tenants, change.now.body.tenants if change.now.body is not None else ()
    try:
        admin = await connect_once(where.nats_url, operator.nats.user, operator.nats.password)
    except StartupError as error:
        raise Failure(Exit.UNAVAILABLE, f"{error}; then apply again") from error
    try:
        new = {(tenant.name, each.name) for tenant in tenants for each in tenant.subscribers if each.begin == "new"}
        new -= {(tenant.name, each.name) for tenant in before for each in tenant.subscribers}  # these lost their place
        subscribers = await ensure_subscribers(admin, where.shard, declared, new)
        webhooks = await ensure_webhooks(admin, where.shard, tenants, before)
        return [f"subscriber {name}: {done}" for name, done in subscribers.items()] + [
            f"webhook {name}: {done}" for name, done in webhooks.items()
        ]
    finally:
        await admin.close()


def _text(body: ConfigBody | None) -> list[str]:
    return [] if body is None else shown(body).splitlines()


def _describe(found: Filled) -> str:
    value = yaml.safe_dump(found.value, default_flow_style=True).removesuffix("...\n").strip()
    return f"{found.field}: {value}" + (f" ({found.why})" if found.why else "")
