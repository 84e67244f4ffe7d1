"""`scontrol update`: what of a job may be changed after its submit, and the way out for what may not. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.job_input import read_command
from tessera.client.slurm import values
from tessera.client.slurm.values import Said
from tessera_schemas.base import Strict
from tessera_schemas.commands import HoldJob, MoveJob, SetPriority

T = TypeVar("T")
BETWEEN_JOBS = re.compile(r",(?![^\[]*\])")
"""Commas of a list of jobs, but for those in brackets of tasks."""
BY_SCALE = "cannot be changed after the submit; a service gets another number of replicas by `tessera scale JOB N`"
NOT_CHANGED: Mapping[str, str] = {
    "minmemorycpu": "say the memory of a node: MinMemoryNode=SIZE",
    "numcpus": "say the CPUs of a node: MinCPUsNode=COUNT",
    "nice": "say a priority class: QOS=CLASS",
    "arraytaskthrottle": BY_SCALE,
    "numtasks": BY_SCALE,
}
"""Fields by their names in small letters, and why a job keeps them."""


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """
    Changes of the jobs that `jobs` names, as Slurm lists them; "" and False for what stays.

    `spec` are fields of the spec with their values, and `after` conditions with the jobs as named, None for as before.
    `size` is the CPU and memory of each node of a job that runs, a pod.
    """

    jobs: tuple[str, ...]
    queue: str = ""
    priority_class: str = ""
    hold: bool = False
    spec: Mapping[str, object] = field(default_factory=dict)
    after: tuple[tuple[str, str], ...] | None = None
    size: Mapping[str, int] = field(default_factory=dict)

    def commands(self, job_id: str, ids: Mapping[str, str]) -> list[Strict]:
        """The commands that change a job so; `ids` has the id of each job that `after` names. Raises Refused."""
        found: list[Strict] = []
        if self.hold:
            found.append(HoldJob(kind="hold_job", v=1, job_id=job_id))
        if self.queue:
            found.append(MoveJob(kind="move_job", v=1, job_id=job_id, queue=self.queue))
        if self.priority_class:
            name = self.priority_class
            found.append(SetPriority(kind="set_priority", v=1, job_id=job_id, priority_class=name))
        if self.size:
            # A size is what it is, however often it is asked for: a key of its own would tell nothing apart.
            key = "scontrol-" + "-".join(map(str, self.size.values()))
            found.append(read_command({"kind": "resize_pods", "job_id": job_id, "key": key, **self.size}))
        changes = dict(self.spec)
        if self.after is not None:
            changes["after"] = [
                {"condition": each, **({"job": ids[other]} if other else {})} for each, other in self.after
            ]
        if changes:
            found.append(read_command({"kind": "update_job", "job_id": job_id, **changes}))
        return found


def read_update(words: Sequence[str], now: datetime) -> JobUpdate:
    """The update of words such as `JobId=7 Partition=large`. Raises Failure with all that no job may be given so."""
    pairs = [word.partition("=") for word in words]
    said = {name.lower(): value for name, sign, value in pairs if sign}
    wrong = [f"{name}: write NAME=VALUE" for name, sign, _ in pairs if not sign]
    named = said.pop("jobid", said.pop("job", ""))
    queue, priority_class = said.pop("partition", ""), said.pop("qos", "")
    priority = said.pop("priority", "")
    if priority not in ("", "0"):
        wrong.append(f"Priority={priority}: a class decides: QOS=CLASS; Priority=0 holds the job")
    spec, after, size = *_spec_of(said, now, wrong), _size_of(said, wrong)
    wrong += [f"{name}: {NOT_CHANGED.get(name, 'cannot be changed after the submit')}" for name in said]
    if queue and "time_limit_seconds" in spec:
        wrong.append("Partition= and TimeLimit=: each is judged by the other; say one, then the other")
    if not named:
        wrong.append("name a job: JobId=JOB")
    if not wrong and not (queue or priority_class or priority or spec or size or after is not None):
        wrong.append(
            "no change is named; give TimeLimit=, StartTime=, Dependency=, JobName=, Partition=, QOS=, Priority=0, "
            "MinCPUsNode= or MinMemoryNode="
        )
    if wrong:
        raise Failure(Exit.USAGE, f"scontrol update: {'; '.join(wrong)}")
    jobs = tuple(filter(None, BETWEEN_JOBS.split(named)))
    return JobUpdate(jobs, queue, priority_class, priority == "0", spec, after, size)


def _size_of(said: dict[str, str], wrong: list[str]) -> dict[str, int]:
    """The size of a node of a job, which is a pod; taken out of what is `said`, with mistakes put in `wrong`."""
    size = dict[str, int]()
    for name, field_name, read, scale in (
        ("MinCPUsNode", "cpu_milli", values.count_of, 1000),
        ("MinMemoryNode", "memory_bytes", values.memory_of, 1),
    ):
        if name.lower() in said:
            try:
                size[field_name] = read(Said("", name, said.pop(name.lower()), sign="")) * scale
            except Failure as failure:
                wrong.append(str(failure).removeprefix(": "))
    return size


def _spec_of(
    said: dict[str, str], now: datetime, wrong: list[str]
) -> tuple[dict[str, object], tuple[tuple[str, str], ...] | None]:
    """Fields of the spec and conditions that are `said`, and are taken out of it; mistakes are put in `wrong`."""

    def tried(work: Callable[[Said], T], name: str, otherwise: T) -> T:
        try:
            return work(Said("", name, said.pop(name.lower()), sign=""))
        except Failure as failure:
            wrong.append(str(failure).removeprefix(": "))
            return otherwise

    spec: dict[str, object] = {}
    after: tuple[tuple[str, str], ...] | None = None
    if "timelimit" in said:
        spec["time_limit_seconds"] = tried(time_limit, "TimeLimit", 0)
    for name in ("StartTime", "EligibleTime"):
        if name.lower() in said:
            spec["begin_ts"] = tried(lambda each: values.begin_ms(each, now), name, 0)
    if "dependency" in said:
        nothing: list[tuple[str, str]] = []
        after = tuple(tried(lambda each: values.dependencies_of(each) if each.text else [], "Dependency", nothing))
    for name in ("JobName", "Name"):
        if name.lower() in said:
            spec["name"] = tried(_name, name, "")
    return spec, after


def time_limit(said: Said) -> int:
    """Seconds of a time limit in Slurm's words, 0 for none. Raises Failure, also for one that is told as a change."""
    if said.text[:1] in ("+", "-") and said.text not in values.NO_LIMIT:
        said.fail(f"say the whole time limit; write {values.LIMITS}")
    return values.seconds_of(said)


def _name(said: Said) -> str:
    return said.text if said.text.strip() else said.fail("write a name")
