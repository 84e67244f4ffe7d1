"""
The state of one shard after n ledger messages, and overlays of it on which decisions are tried.

Only `fold` writes here. The sorted indexes are derived from the tables and belong to the base alone: an overlay
reads the base's and sees its own writes in the tables.
"""

from collections.abc import Iterator

from sortedcontainers import SortedList

from tessera.domain.entities import Earmark, EndedJob, Job, Line, Run, Use
from tessera.domain.phases import Phase
from tessera.domain.queues import QueueTree, queue_tree
from tessera.domain.resources import NOTHING, Amount, Node
from tessera.domain.table import Table
from tessera_schemas.config import Config
from tessera_schemas.ledger import GENESIS

TABLES = ("jobs", "ended", "runs", "nodes", "queue_use", "tenant_use", "earmarks", "lines")


class State:
    """Everything that decisions of a shard may look at."""

    def __init__(self) -> None:
        self.n = 0
        self.chain = GENESIS
        self.epoch = 0
        self.ts = 0
        self.format = 0
        self.facts_upto = 0
        self.config = Config()
        self.tree: QueueTree = queue_tree(self.config)
        self.jobs: Table[Job] = Table()
        self.ended: Table[EndedJob] = Table()
        self.runs: Table[Run] = Table()
        self.nodes: Table[Node] = Table()
        self.queue_use: Table[Use] = Table()
        self.tenant_use: Table[Use] = Table()
        self.earmarks: Table[Earmark] = Table()
        self.lines: Table[Line] = Table()
        self.index = Index()
        self.is_base = True

    def overlay(self) -> "State":
        """A copy-on-write view: writes stay in it, the base must rest while it is used."""
        top = State.__new__(State)
        top.__dict__.update(self.__dict__)
        for name in TABLES:
            setattr(top, name, getattr(self, name).overlay())
        top.is_base = False
        return top

    def set_config(self, config: Config) -> None:
        self.config = config
        self.tree = queue_tree(config)
        if self.is_base:
            self.index.rebuild_waiting(self)

    def put_job(self, job: Job) -> None:
        if self.is_base:
            self.index.job_changes(self, self.jobs.get(job.job_id), job)
        self.jobs.put(job.job_id, job)

    def drop_job(self, job: Job) -> None:
        if self.is_base:
            self.index.job_changes(self, job, None)
        self.jobs.drop(job.job_id)

    def put_run(self, run: Run) -> None:
        if self.is_base:
            self.index.run_changes(self.runs.get(run.run_id), run)
        self.runs.put(run.run_id, run)

    def drop_run(self, run: Run) -> None:
        if self.is_base:
            self.index.run_changes(run, None)
        self.runs.drop(run.run_id)

    def put_ended(self, ended: EndedJob) -> None:
        if self.is_base:
            self.index.forget_at.add((ended.forget_ts, ended.job_id))
        self.ended.put(ended.job_id, ended)

    def drop_ended(self, ended: EndedJob) -> None:
        if self.is_base:
            self.index.forget_at.discard((ended.forget_ts, ended.job_id))
        self.ended.drop(ended.job_id)

    def held_by_queue(self, queue: str) -> Amount:
        use = self.queue_use.get(queue)
        return NOTHING if use is None else use.amount

    def rebuild_index(self) -> None:
        """After a restore: the indexes again from the tables."""
        self.index = index = Index()
        index.rebuild_waiting(self)
        for job in self.jobs.values():
            if job.phase is Phase.QUEUED and job.not_before:
                index.retry_at.add((job.not_before, job.job_id))
        for run in self.runs.values():
            index.run_changes(None, run)
        for ended in self.ended.values():
            index.forget_at.add((ended.forget_ts, ended.job_id))


class Index:
    """What must be found in order without looking at everything; every order ends in a unique id."""

    def __init__(self) -> None:
        self.waiting: dict[str, SortedList[tuple[int, int, int, str]]] = {}
        self.retry_at: SortedList[tuple[int, str]] = SortedList()
        self.start_by: SortedList[tuple[int, str]] = SortedList()
        self.forget_at: SortedList[tuple[int, str]] = SortedList()
        self.orphaned: dict[str, None] = {}

    def line(self, pool: str) -> Iterator[str]:
        """Ids of the queued jobs of a pool: priority first, then age."""
        return (entry[3] for entry in self.waiting.get(pool, ()))

    def job_changes(self, state: State, old: Job | None, new: Job | None) -> None:
        was = old if old is not None and old.phase is Phase.QUEUED else None
        now = new if new is not None and new.phase is Phase.QUEUED else None
        if was is not None and was.not_before:
            self.retry_at.discard((was.not_before, was.job_id))
        if now is not None and now.not_before:
            self.retry_at.add((now.not_before, now.job_id))
        if was is not None and now is None:
            pool = state.tree.pool(was.queue)
            if pool is None:
                self.orphaned.pop(was.job_id, None)
            else:
                self.waiting[pool].remove(_place_in_line(state.tree, was))
        elif now is not None and was is None:
            self._wait(state, now)

    def run_changes(self, old: Run | None, new: Run | None) -> None:
        was = old is not None and not old.started and not old.stopping
        now = new is not None and not new.started and not new.stopping
        if was and not now and old is not None:
            self.start_by.remove((old.deadline, old.run_id))
        elif now and not was and new is not None:
            self.start_by.add((new.deadline, new.run_id))

    def rebuild_waiting(self, state: State) -> None:
        """A new configuration moves queues between pools and priorities up and down."""
        self.waiting, self.orphaned = {}, {}
        for job in state.jobs.values():
            if job.phase is Phase.QUEUED:
                self._wait(state, job)

    def _wait(self, state: State, job: Job) -> None:
        pool = state.tree.pool(job.queue)
        if pool is None:
            self.orphaned[job.job_id] = None
            return
        self.waiting.setdefault(pool, SortedList()).add(_place_in_line(state.tree, job))


def _place_in_line(tree: QueueTree, job: Job) -> tuple[int, int, int, str]:
    return (-tree.priority(job.priority_class), job.taken_n, job.fact_index, job.job_id)
