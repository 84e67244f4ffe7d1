"""
The rules of sessions: who is warned and stopped as idle, what a pause leaves, where a resumed one waits, and how many
a user has.

Judged by the stored records, and where pods are given by what the API showed of them. It imports the contract alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.labels import run_and_rank
from tessera_schemas.config import ConfigBody, Limits
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import SessionWarned
from tessera_schemas.work.measured_use import Session

BY_ITS_POD = {Code.PAUSED_AS_IDLE: "pause", Code.ENDED_AS_IDLE: "end"}
"""Ends of which the pod itself says that nobody used it, and what its spec has to say then."""
ROUNDED_MS = 1000
"""Kubelets write whole seconds."""
PodVersion = tuple[int | None, Mapping[str, Any]]
"""A pod, and the ledger's last n when it was so; None: not known."""


@dataclass(slots=True, eq=False)
class LiveSession:
    """One that has not ended. `stops_ts` is when it stops by the last warning, 0 for none."""

    tenant: str
    user: str
    session: Session
    priority_class: str
    adopted: bool
    held: bool
    run_id: str = ""
    started: bool = False
    stops_ts: int = 0


@dataclass(slots=True)
class SeenPods:
    """Of a run's pod: when it was first not ready, and its last version."""

    warned_n: int | None
    last: Mapping[str, Any]


def check_sessions(report: Report, ledger: Iterable[bytes], pods: Iterable[PodVersion] = ()) -> None:
    """
    Judge every session of a ledger; each violation names the rule `session`.

    Args:
        report: what is found goes here, beside what the invariant checker found.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
        pods: every version of every pod, in order; without them, what pods have said is believed.
    """
    rules = SessionRules(report, _seen(pods))
    for stored in ledger:
        try:
            rules.take(m.LEDGER_MESSAGE.validate_json(stored))
        except ValidationError:
            return


def _seen(pods: Iterable[PodVersion]) -> dict[str, SeenPods]:
    found = dict[str, SeenPods]()
    for n, pod in pods:
        run_id, _ = run_and_rank(pod)
        seen = found.setdefault(run_id, SeenPods(None, pod))
        seen.last = pod
        if seen.warned_n is None and _ready(pod).get("status") == "False":
            seen.warned_n = n or 0
    return found


def _ready(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "Ready"), {})


class SessionRules:
    """Takes messages in order. Without `pods` nothing is demanded of them."""

    def __init__(self, report: Report, pods: Mapping[str, SeenPods]) -> None:
        self._report, self._pods, self._n, self._ts = report, pods, 0, 0
        self._body: ConfigBody | None = None
        self._live = dict[str, LiveSession]()
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Check each record of a message in order."""
        self._n, self._ts, self._message = message.n, message.ts, message
        for at, record in enumerate(message.records):
            getattr(self, f"_{record.kind}", lambda *_: None)(record, message.records[at + 1 :])

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "session", self._n, text)

    def _of(self, run_id: str) -> LiveSession | None:
        live = self._live.get(run_id.rpartition("-")[0])
        return live if live is not None and live.run_id == run_id else None

    def _cited(self, index: int) -> f.AnyFact | None:
        return self._message.facts[index].fact if index < len(self._message.facts) else None

    # -- how many there are

    def _config_set(self, r: m.ConfigSet, rest: tuple[m.AnyRecord, ...]) -> None:
        if isinstance(fact := self._cited(r.fact), f.ConfigProposed):
            self._body = fact.body

    def _job_queued(self, r: m.JobQueued, rest: tuple[m.AnyRecord, ...]) -> None:
        fact = self._cited(r.fact)
        if not isinstance(fact, f.JobAdmitted) or (session := fact.spec.session) is None:
            return
        tenants = () if self._body is None else self._body.tenants
        limits = next((tenant.limits for tenant in tenants if tenant.name == fact.tenant), Limits())
        users = [live.user for live in self._live.values() if live.tenant == fact.tenant]
        own, user = users.count(fact.spec.user), fact.spec.user
        most = limits.sessions, limits.sessions_per_user
        within = all(limit is None or has < limit for has, limit in zip((len(users), own), most, strict=True))
        self._demand(within, f"{r.job_id} of {fact.tenant}, {user!r} is taken in beside {len(users)}, {own} of them")
        adopted = fact.adopted is not None
        named = fact.spec.priority_class
        self._live[r.job_id] = LiveSession(fact.tenant, user, session, named, adopted, fact.held)

    def _finished(self, r: m.Finished, rest: tuple[m.AnyRecord, ...]) -> None:
        self._live.pop(r.job_id, None)

    # -- warnings, and ends for want of use

    def _allocated(self, r: m.Allocated, rest: tuple[m.AnyRecord, ...]) -> None:
        if (live := self._live.get(r.job_id)) is not None:
            self._demand(not live.held, f"{r.job_id} starts, and it is paused")
            live.run_id, live.started, live.stops_ts = f"{r.job_id}-{r.attempt}", False, 0

    def _started(self, r: m.Started, rest: tuple[m.AnyRecord, ...]) -> None:
        if (live := self._of(r.run_id)) is not None:
            live.started = True

    def _session_warned(self, r: SessionWarned, rest: tuple[m.AnyRecord, ...]) -> None:
        live = self._of(r.run_id)
        self._demand(live is not None and live.started, f"{r.run_id} is warned, and is no session at work")
        if live is None:
            return
        self._demand(bool(live.session.idle_seconds), f"{r.run_id} is warned, and idleness never stops it")
        due = 0 if live.stops_ts else self._ts + live.session.warning_seconds * 1000
        self._demand(r.stops_ts == due, f"{r.run_id} is warned until {r.stops_ts}, and {due} is due")
        live.stops_ts = r.stops_ts
        if self._pods and r.stops_ts:
            seen = self._pods.get(r.run_id)
            said = seen is not None and seen.warned_n is not None and seen.warned_n <= self._n
            self._demand(said, f"{r.run_id} is warned before its pod was")

    def _revoked(self, r: m.Revoked, rest: tuple[m.AnyRecord, ...]) -> None:
        live, wants = self._of(r.run_id), BY_ITS_POD.get(Code(r.reason.code))
        if live is None or wants is None:
            return
        asked = live.session.on_idle == wants and bool(live.session.idle_seconds)
        self._demand(asked, f"{r.run_id} is {r.reason.code}, and its spec says nothing of it")
        seen = self._pods.get(r.run_id)
        if seen is not None:
            since, ended = _ready(seen.last), _ended_ms(seen.last)
            warned, begun = since.get("status") == "False", _ms(since.get("lastTransitionTime"))
            self._demand(warned, f"{r.run_id} is {r.reason.code}, and no warning stood when it ended")
            if ended is not None and begun is not None:
                known_ms = ended - begun
                enough = known_ms + ROUNDED_MS >= live.session.warning_seconds * 1000
                self._demand(enough, f"{r.run_id} is {r.reason.code} {known_ms} ms after its warning")

    # -- pauses, and what comes after them

    def _requeued(self, r: m.Requeued, rest: tuple[m.AnyRecord, ...]) -> None:
        if (live := self._live.get(r.job_id)) is None or live.adopted:
            return
        if r.reason.code in (Code.PAUSED_AS_IDLE, Code.IDLE):
            holds = any(isinstance(each, m.Held) and each.job_id == r.job_id and not each.undo for each in rest)
            self._demand(live.held or holds, f"{r.job_id} is {r.reason.code}, and waits in line again")

    def _held(self, r: m.Held, rest: tuple[m.AnyRecord, ...]) -> None:
        if (live := self._live.get(r.job_id)) is None:
            return
        live.held = not r.undo
        name = None if self._body is None else self._body.defaults.sessions.resume_class
        if r.undo and name and live.run_id and not live.adopted:
            rises = self._value(name) > self._value(live.priority_class)
            after = rest[0] if rest else None
            set_to = after.priority_class if isinstance(after, m.PrioritySet) and after.job_id == r.job_id else None
            self._demand(set_to == (name if rises else None), f"{r.job_id} is resumed in {set_to}, of {name}")

    def _priority_set(self, r: m.PrioritySet, rest: tuple[m.AnyRecord, ...]) -> None:
        if (live := self._live.get(r.job_id)) is not None:
            live.priority_class = r.priority_class

    def _value(self, name: str) -> int:
        values = {} if self._body is None else {each.name: each.value for each in self._body.priority_classes}
        return values.get(name, min(values.values(), default=0))


def _ended_ms(pod: Mapping[str, Any]) -> int | None:
    """Time at which the pod's first container has ended, as its kubelet said; None where it did not."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [(one.get("state") or {}).get("terminated") or {} for one in containers]
    return _ms(states[0].get("finishedAt")) if states else None


def _ms(said: object) -> int | None:
    return int(datetime.fromisoformat(said).timestamp() * 1000) if isinstance(said, str) else None
