"""
The views of a state: one JSON value per job, queue, node, and the configuration. Pure.

A value is made from the state alone, whether one field is brought up to date or all are built anew, so that both ways
give the same bytes. What a message touches is found from its records; a field touched for nothing costs a little and
changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from tessera.domain.devices.costs import rates_of
from tessera.domain.devices.resources import Node, OthersUse, is_seat
from tessera.domain.entities import EndedJob, Job
from tessera.domain.health.spares import find_all_spares
from tessera.domain.queues import QuotaBook
from tessera.domain.quota.queue_settings import longest_time_limit, session_address
from tessera.domain.state import State
from tessera.domain.work.dependencies import awaited_by
from tessera.domain.work.phases import Phase
from tessera.domain.work.stops import missing_gpus, tell_fence, waiting_on
from tessera.engine.queueing.readiness import in_backoff
from tessera.kernel.ports import Change
from tessera.projection.array_views import array_view, view
from tessera.projection.moved_places import nodes_moved, seen_anew
from tessera.projection.published_devices import devices_of_job, ended_with_devices, gres_of_node
from tessera.projection.recently_ended import ENDED_MAX, ENDED_SECONDS, RecentlyEnded
from tessera_schemas.base import DIGEST_CHARACTERS
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import WorkRefused
from tessera_schemas.ledger import (
    JOB_OF,
    Allocated,
    DevicesNoted,
    EarmarkEnded,
    EarmarkSet,
    FenceAsked,
    FenceEnded,
    Finished,
    Grown,
    HealthNoted,
    LedgerMessage,
    MigChangeBegun,
    MigChangeEnded,
    NodeBackedOff,
    NodeChanged,
    NodeDrained,
    RefusalNoted,
    Released,
    Revoked,
    Spared,
    Started,
    StopHeldBack,
    TaskQueued,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.keys import VIEWS
from tessera_schemas.shard.lending import lent_until
from tessera_schemas.shard.records import ResizeBegun, ResizeEnded
from tessera_schemas.views import JobView, NodeTestView, NodeView, OthersView, QueueView, QuotaUse
from tessera_schemas.work.run_ends import RUN_ENDS

JOBS, QUEUES, NODES, CONFIG, REFUSED, REMEMBERED_NODES = VIEWS
Field = tuple[str, str]
"""View and key."""

STOPS = frozenset({Revoked, Finished, StopHeldBack, Spared})
"""Records by which a run comes to wait for its nodes, or goes on although it seems lost."""
MOVES_CAPACITY = frozenset({Allocated, Grown, Released, ResizeBegun, ResizeEnded, EarmarkSet, EarmarkEnded})
"""Records that take or give back room on nodes, and quota with it: in a queue tree that is everybody's."""


class Views:
    """
    Makes the values, and counts what the state does not index: how many jobs wait in each queue.

    Of ended jobs, the last `ended_max` that ended within `ended_seconds` are shown.
    """

    def __init__(self, state: State, ended_max: int = ENDED_MAX, ended_seconds: int = ENDED_SECONDS) -> None:
        self._state = state
        self._recent = RecentlyEnded(state.remembered, state.ts, ended_max, ended_seconds)
        self._book: tuple[int, QuotaBook] | None = None
        self._spares = find_all_spares(state)
        self._waiting = Counter[str]()
        for job in state.jobs.values():
            self._waiting[job.queue] += _waiting_in(job)

    def moved_by(self, message: LedgerMessage, fold: Callable[[], None]) -> dict[Field, None]:
        """Fold `message` and return the fields that may have changed."""
        state, tree = self._state, self._state.tree
        jobs, nodes, quotas = touched(state, message)
        queues = self._count(jobs, -1)
        remembers = bool(state.lost_due(message.ts)) or any(type(record) is NodeChanged for record in message.records)
        remembered = dict(state.remembered_nodes.items()) if remembers else {}
        before_ts, tests = state.ts, dict(state.node_tests.items())
        fold()
        paused = state.index.retry_at.irange((before_ts + 1,), (state.ts + 1,))
        self._book = None
        queues |= self._count(jobs, 1)
        queues |= self._sharing(quotas)
        fields: dict[Field, None] = {(JOBS, job_id): None for job_id in jobs}
        fields |= {(JOBS, job_id): None for _, job_id in paused}  # their back-off is over
        fields |= {(JOBS, job_id): None for job_id in self._recent.update(jobs, state.ts)}
        fields |= {(JOBS, job_id): None for job_id in ended_with_devices(state, message, self._recent)}
        fields |= {(NODES, name): None for name in nodes}
        now = dict(state.node_tests.items())
        fields |= {(NODES, name): None for name in tests | now if tests.get(name) is not now.get(name)}
        if nodes or state.tree is not tree or len(state.backoffs):  # a node that is used makes another one a spare
            before, self._spares = self._spares, find_all_spares(state)
            fields |= {(NODES, name): None for name in sorted(before ^ self._spares)}
        fields |= {(REFUSED, work_id): None for work_id in refused_in(message)}
        for name in (*remembered, *nodes) if remembers else ():
            if state.remembered_nodes.get(name) is not remembered.get(name):
                fields[REMEMBERED_NODES, name] = None
        if state.tree is not tree:
            fields[CONFIG, CONFIG] = None
            queues |= dict.fromkeys(tree.queues) | dict.fromkeys(self._queues())
            seen = state.tree.flavors, state.tree.tolerated, state.tree.gres
            if seen != (tree.flavors, tree.tolerated, tree.gres):
                fields |= {(NODES, name): None for name, _ in state.nodes.items()}
                fields |= {(REMEMBERED_NODES, name): None for name, _ in state.remembered_nodes.items()}
            # A run counts on the flavor that its nodes have now.
            fields |= {(JOBS, run.job_id): None for run in state.runs.values()}
            shown = ("priorities", "knows_all", "money", "gres", "defaults")
            if any(getattr(state.tree, name) != getattr(tree, name) for name in shown):
                fields |= {(JOBS, job_id): None for job_id in (*dict(state.jobs.items()), *self._recent)}
        return fields | {(QUEUES, name): None for name in queues}

    def fields(self) -> Iterator[Field]:
        """Every field there is."""
        state = self._state
        yield CONFIG, CONFIG
        yield from ((QUEUES, name) for name in self._queues())
        yield from ((NODES, name) for name, _ in state.nodes.items())
        yield from ((JOBS, job_id) for job_id, _ in state.jobs.items())
        yield from ((JOBS, job_id) for job_id in self._recent)
        yield from ((REFUSED, work_id) for work_id, _ in state.refused.items())
        yield from ((REMEMBERED_NODES, name) for name, _ in state.remembered_nodes.items())

    def value(self, field: Field) -> bytes | None:
        """The field as of the state; None when there is no such entity."""
        view, key = field
        return self._MAKE[view](self, key)

    def change(self, field: Field) -> Change:
        """Change that brings one field of a view to its value in the state now."""
        return Change(*field, self.value(field))

    def _count(self, jobs: Iterable[str], sign: int) -> dict[str, None]:
        """Put these jobs into the counts (1) or take them out (-1); returns their queues."""
        queues: dict[str, None] = {}
        for job_id in jobs:
            job = self._state.jobs.get(job_id)
            if job is not None:
                self._waiting[job.queue] += sign * _waiting_in(job)
            known = job or self._state.ended.get(job_id)
            if known is not None:
                queues[known.queue] = None
        return queues

    def _sharing(self, jobs: Iterable[str]) -> dict[str, None]:
        """The queues of these jobs and, where quotas are shared, those that share with them."""
        state, tree = self._state, self._state.tree
        known = [job for job_id in jobs if (job := state.jobs.get(job_id) or state.ended.get(job_id)) is not None]
        roots = {root for job in known if (root := tree.roots.get(job.queue)) is not None and tree.covered[root]}
        return {name: None for name, root in tree.roots.items() if root in roots} if roots else {}

    def _queues(self) -> Iterator[str]:
        """Configured, or held on to by jobs and runs after the configuration dropped them."""
        state = self._state
        names = dict.fromkeys(state.tree.queues) | dict.fromkeys(self._waiting)
        # What a queue holds of one flavor stands under a name of its own.
        return iter(names | {name: None for name, _ in state.queue_use.items() if "/" not in name})

    def _job(self, job_id: str) -> bytes | None:
        state = self._state
        job = state.jobs.get(job_id)
        if job is None:
            ended = state.ended.get(job_id) if job_id in self._recent else None
            return None if ended is None else self._ended(ended)
        mark = state.earmarks.get(job_id)
        return view(
            JobView,
            **_shared(job),
            priority=state.tree.priority_of(job),
            started_ts=job.started_ts,
            not_before=job.not_before,
            deadline_ts=job.deadline_ts,
            reservation=job.booking,
            reason=self._held_back(job) or self._backing_off(job) or job.reason,
            **self._describe_run(job),
            priority_class=job.priority_class if job.adopted is None else job.adopted.priority_class,
            held=job.held,
            operator_hold=job.operator_hold,
            evictions=job.evictions,
            earmarked_until=0 if mark is None else mark.deadline,
            saved_path=job.saved_path,
            avoid=job.avoid,
            owner="" if job.adopted is None else job.adopted.owner,
            **awaited_by(job),
            address=session_address(state.tree, job),
            exclusive=any(role.need.exclusive for role in job.roles),
            time_limit_seconds=job.time_limit_seconds if job.number else 0,
            **self._sums(job),
            **devices_of_job(self._state, job.gang.amount, job.gang),
        ).to_bytes()

    def _held_back(self, job: Job) -> Reason | None:
        """Why the job's run goes on although it seems lost."""
        run = self._state.runs.get(job.run_id)
        return None if run is None else run.held_back

    def _backing_off(self, job: Job) -> Reason | None:
        """Why a job waits whose last run's end is all that the ledger says of it, until its next attempt may start."""
        told = job.kept_out or (job.reason is not None and job.reason.code not in RUN_ENDS)
        pause = None if told or not job.number else in_backoff(job, self._state.ts)
        return None if pause is None else pause.model_copy(update={"numbers": {"until_ts": job.not_before}})

    def _describe_run(self, job: Job) -> dict[str, Any]:
        """Fields about the job's run until it is released."""
        run = self._state.runs.get(job.run_id)
        if run is None:
            return {}
        told = {name: getattr(run, name) for name in ("flavor", "saved_ts", "idle_ts")}
        return told | {"gpu_counted_ts": run.uncounted_ts} | self._held(run.run_id)

    def _sums(self, job: Job | EndedJob) -> dict[str, Any]:
        """Kind of session, and what was measured of the job's GPUs, with their cost where there are prices."""
        use = {"gpu_use": self._state.gpu_use_of(job), "session": job.session.kind if job.session else ""}
        if (money := self._state.tree.money) is None:
            return use
        rates = rates_of(self._state, self._state.runs.get(job.run_id) if isinstance(job, Job) else None)
        cost = {"cost_micros": job.cost_micros, "cost_rest": job.cost_rest}
        return use | cost | {"currency": money.currency, "cost_rates": rates}

    def _ended(self, job: EndedJob) -> bytes:
        """An ended job has no place in any line, hence no priority."""
        return view(
            JobView,
            **_shared(job),
            priority=0,
            started_ts=job.started_ts,
            ended_ts=job.ended_ts,
            reason=job.reason,
            exit_code=job.exit_code,
            priority_class=job.priority_class,
            evictions=job.evictions,
            time_limit_seconds=job.time_limit_seconds,
            nodes=job.nodes,
            **self._sums(job),
            **devices_of_job(self._state, job.amount),
            **self._held(f"{job.job_id}-{job.attempt}"),
        ).to_bytes()

    def _held(self, run_id: str) -> dict[str, Any]:
        """Resources that the job's run holds until it is released."""
        run = self._state.runs.get(run_id)
        if run is None:
            return {}
        return {"placements": run.places, "held_pods": len(run.places), "held_gpu_milli": run.amount.gpu_milli}

    def _queue(self, name: str) -> bytes | None:
        state = self._state
        queue, waiting, use = state.tree.queues.get(name), self._waiting[name], state.queue_use.get(name)
        live = 0 if use is None else use.jobs
        if queue is None and not waiting and not live:
            return None
        amount = state.held_by_queue(name)
        return view(
            QueueView,
            name=name,
            pool="" if queue is None else queue.pool,
            queued=waiting,
            live=live,
            used_cpu_milli=amount.cpu_milli,
            used_memory_bytes=amount.memory_bytes,
            used_gpu_milli=amount.gpu_milli,
            removed=queue is None or name in state.tree.removed,
            **({} if queue is None else self._in_tree(queue)),
        ).to_bytes()

    def _in_tree(self, queue: Queue) -> dict[str, Any]:
        """Quotas of the queue in the configuration, and its use of them."""
        return {
            "parent": queue.parent or "",
            "inner": queue.name in self._state.tree.children,
            "weight": queue.weight,
            "stop_policy": queue.stop_policy,
            "time_limit_max_seconds": longest_time_limit(self._state.tree, queue.name, "")[0],
            "quotas": tuple(self._quota(queue, quota) for quota in queue.quotas),
        }

    def _quota(self, queue: Queue, quota: Quota) -> QuotaUse:
        name, until = queue.name, lent_until(queue.lending, self._state.ts) if queue.lending else 0
        if self._book is None or self._book[0] != self._state.n:
            self._book = self._state.n, self._state.quota_book()
        book, cell = self._book[1], (quota.flavor, quota.resource)
        total, used, available = book.total(name, cell), book.used(name, cell), book.available(name, cell)
        return view(
            QuotaUse,
            resource=quota.resource,
            flavor=quota.flavor,
            nominal=quota.nominal,
            borrowing_limit=quota.borrowing_limit,
            lending_limit=quota.lending_limit,
            used=used,
            borrowed=max(0, used - total),
            lent=max(0, total - used - max(0, available)),
            available=available,
            part_percent=quota.part_percent,
            lending_until=until,
        )

    def _node(self, name: str) -> bytes | None:
        node = self._state.nodes.get(name)
        if node is None:
            return None
        drain = self._state.drains.get(name)
        drained: dict[str, Any] = {"drained": drain is not None, "spare": name in self._spares}
        if drain is not None:
            drained |= {"drain_why": drain.why, "drained_by": drain.by}
        if (test := self._state.node_tests.get(name)) is not None:
            names = NodeTestView.model_fields
            drained["test"] = view(NodeTestView, **{name: getattr(test, name) for name in names})
        if (sick := self._state.health.get(name)) is not None:
            drained |= {"ailments": sick.ailments, "overruled": sick.overruled, "health_held_back": sick.held_back}
        there = self._state.runs.found(self._state.index.runs_on.get(name, ()))
        awaited = {
            "away_since_ts": node.away_ts,
            "missing_gpus": missing_gpus(node, there),
            "waiting_runs": len(waiting_on(self._state, name)),
            "fence": tell_fence(self._state, name),
            "held_back_runs": sum(run.held_back is not None for run in there),
        }
        trouble = {"trouble": node.trouble or self._backoff_of(name)}
        return self._view_of(node, **drained, **awaited, **trouble).to_bytes()

    def _remembered_node(self, name: str) -> bytes | None:
        row = self._state.remembered_nodes.get(name)
        return None if row is None else self._view_of(row.node, lost_ts=row.lost_ts).to_bytes()

    def _view_of(self, node: Node, **more: Any) -> NodeView:
        return view(
            NodeView,
            name=node.name,
            pool=node.pool,
            ready=node.ready,
            gone=node.gone,
            gpu_model=node.gpu_model,
            gpus=node.gpus,
            cpu_milli=node.cpu_milli,
            memory_bytes=node.memory_bytes,
            pods=node.pods,
            cpu_free_milli=max(0, node.cpu_free),
            memory_free_bytes=max(0, node.memory_free),
            pods_free=max(0, node.pods_free),
            gpu_free=tuple(max(0, free) for free in node.gpu_free),
            device_profile=node.device_profile,
            labels=dict(node.labels),
            taints=node.taints,
            gpu_memory_bytes=node.gpu_memory_bytes,
            mig_geometry=node.mig_geometry,
            devices=node.devices,
            devices_free=tuple((name, max(0, free)) for name, free in node.devices_free if not is_seat(name)),
            device_classes=node.device_classes,
            gres=gres_of_node(self._state, node),
            flavor=self._state.tree.flavor_of(node),
            others=_others(node.others),
            mig_instances=node.mig_instances,
            gpu_uuids=node.gpu_uuids,
            cordoned=node.cordoned,
            tolerated=node.tolerated,
            capacity=node.capacity,
            gpu_resource=node.gpu_resource,
            gpu_default=node.gpu_default,
            share_milli=node.share_milli,
            **more,
        )

    def _backoff_of(self, node: str) -> Reason | None:
        """Why a node takes nothing new although it is well; shown until a run starts on it."""
        backoff = self._state.backoffs.get(node)
        if backoff is None or not backoff.until_ts:
            return None
        numbers = {"until_ts": backoff.until_ts, "times": backoff.times}
        detail = f"last: {backoff.reason.sentence()}"[:1024]
        return Reason(code=Code.NODE_BACKED_OFF, field=f"nodes.{node}", numbers=numbers, detail=detail)

    def _config(self, key: str) -> bytes | None:
        config = self._state.config
        return config.to_bytes() if config.version else None

    def _refused(self, work_id: str) -> bytes | None:
        """
        View of refused work in the form of a job: without a phase that a job has, asking for nothing and holding
        nothing.
        """
        work = self._state.refused.get(work_id)
        if work is None:
            return None
        return view(
            JobView,
            job_id=work.work_id,
            tenant=work.tenant,
            queue=work.queue,
            name=work.name,
            key="",
            phase=REFUSED,
            priority=0,
            attempt=0,
            pods=0,
            gpu_milli=0,
            submitted_ts=work.since_ts,
            reason=work.reasons[0],
            owner=work.owner,
        ).to_bytes()

    # What makes a field's value, by view.
    _MAKE: ClassVar[dict[str, Callable[["Views", str], bytes | None]]] = {
        JOBS: _job,
        QUEUES: _queue,
        NODES: _node,
        CONFIG: _config,
        REFUSED: _refused,
        REMEMBERED_NODES: _remembered_node,
    }


def all_views(state: State, ended_max: int = ENDED_MAX, ended_seconds: int = ENDED_SECONDS) -> list[Change]:
    """The whole of the views of `state`."""
    views = Views(state, ended_max, ended_seconds)
    return [change for field in views.fields() if (change := views.change(field)).value is not None]


OF_A_NODE = NodeDrained | NodeBackedOff | HealthNoted | MigChangeBegun | MigChangeEnded | FenceAsked | FenceEnded


def touched(state: State, message: LedgerMessage) -> tuple[dict[str, None], dict[str, None], dict[str, None]]:
    """Jobs and nodes that `message` may change, and jobs that move quota; `state` is the one before it."""
    jobs = dict.fromkeys(state.remembered.due(message.ts))
    nodes: dict[str, None] = {}
    quotas: dict[str, None] = {}
    for record in message.records:
        job_of = JOB_OF.get(type(record))
        if job_of is not None:
            jobs[job_of(record)] = None
        if type(record) is TaskQueued:
            jobs[record.array] = None
        if type(record) in MOVES_CAPACITY:
            quotas[JOB_OF[type(record)](record)] = None
            nodes |= nodes_moved(state, record)
        if isinstance(record, OF_A_NODE):
            nodes[record.node] = None
        if isinstance(record, Started | Finished) and len(state.backoffs):
            nodes |= {node: None for node, _ in state.backoffs.items()}
        if type(record) in STOPS:
            nodes |= dict.fromkeys(_stopped_on(state, record))
        if isinstance(record, NodeChanged | DevicesNoted):
            more_jobs, more_nodes = seen_anew(state, message.facts[record.fact].fact)
            jobs, nodes = jobs | more_jobs, nodes | more_nodes
    arrays = {job.task_of: None for job in state.jobs.found(jobs) if job.task_of}
    return jobs | arrays, nodes, quotas


def _stopped_on(state: State, record: Any) -> Iterator[str]:
    """Nodes of which more is shown than what is free: silent ones, and those of a run that is or was held back."""
    job = state.jobs.get(JOB_OF[type(record)](record))
    run = None if job is None else state.runs.get(job.run_id)
    if run is None:
        return
    shown = type(record) is StopHeldBack or run.held_back is not None
    for place in run.places:
        node = state.nodes.get(place.node)
        if node is not None and (shown or node.silent):
            yield node.name


def refused_in(message: LedgerMessage) -> Iterator[str]:
    """The refused work of which `message` says something."""
    for record in message.records:
        if type(record) is RefusalNoted:
            fact = message.facts[record.fact].fact
            if isinstance(fact, WorkRefused):  # the fold refuses any other
                yield fact.work_id


def _shared(job: Job | EndedJob) -> dict[str, Any]:
    """Fields of a job's view whether or not it has ended."""
    return {
        "job_id": job.job_id,
        "tenant": job.tenant,
        "queue": job.queue,
        "name": job.name,
        "key": job.key,
        "phase": job.phase.value,
        "attempt": job.attempt,
        "pods": job.pods,
        "gpu_milli": job.amount.gpu_milli,
        "submitted_ts": job.submitted_ts,
        "array": None if job.array is None else array_view(job, job.array),
        "task_of": job.task_of,
        "task": job.task,
        **_with_number(job),
    }


def _with_number(job: Job | EndedJob) -> dict[str, Any]:
    """Fields that came with numbers: rows of older jobs stay as an older version made them, and are not made anew."""
    if not job.number:
        return {}
    return {
        "number": job.number,
        "array_number": job.array_number,
        "user": job.user,
        "project": job.project,
        "cpu_milli": job.amount.cpu_milli,
        "memory_bytes": job.amount.memory_bytes,
        "digest": job.spec_hash[:DIGEST_CHARACTERS],
        "earlier_ms": job.earlier_ms,
        "gpu_milli_ms": job.gpu_milli_ms,
        "changes": job.changes,
    }


def _waiting_in(job: Job) -> int:
    """Number of waiting jobs of its queue that it stands for: an array for the tasks that are not queued yet."""
    if job.phase is not Phase.QUEUED:
        return 0
    return 1 if job.array is None else job.array.left


def _others(others: OthersUse) -> OthersView:
    return view(
        OthersView,
        pods=others.pods,
        cpu_milli=others.cpu_milli,
        memory_bytes=others.memory_bytes,
        gpus=others.gpus,
        devices=others.devices,
    )
