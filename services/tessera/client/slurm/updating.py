"""`scontrol update`: what of a job may be changed after its submit, and the way out for what may not. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure
from tessera_schemas.base import Strict
from tessera_schemas.commands import HoldJob, MoveJob, SetPriority

SEND_AGAIN = "is part of the spec, which stays as it was submitted: `scancel` the job and submit it again"
BETWEEN_JOBS = re.compile(r",(?![^\[]*\])")
"""Commas of a list of jobs, but for those in brackets of tasks."""
NOT_CHANGED: Mapping[str, str] = {
    "timelimit": SEND_AGAIN,
    "dependency": SEND_AGAIN,
    "jobname": SEND_AGAIN,
    "name": SEND_AGAIN,
    "starttime": f"{SEND_AGAIN}; `scontrol hold` and `release` put a start off",
    "eligibletime": f"{SEND_AGAIN}; `scontrol hold` and `release` put a start off",
    "nice": "say a priority class: QOS=CLASS",
}
"""Fields by their names in small letters, and why a job keeps them."""


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """Changes of the jobs that `jobs` names, as Slurm lists them; "" and False for what stays."""

    jobs: tuple[str, ...]
    queue: str = ""
    priority_class: str = ""
    hold: bool = False

    def commands(self, job_id: str) -> list[Strict]:
        """The commands that change a job so."""
        found: list[Strict] = []
        if self.hold:
            found.append(HoldJob(kind="hold_job", v=1, job_id=job_id))
        if self.queue:
            found.append(MoveJob(kind="move_job", v=1, job_id=job_id, queue=self.queue))
        if self.priority_class:
            name = self.priority_class
            found.append(SetPriority(kind="set_priority", v=1, job_id=job_id, priority_class=name))
        return found


def read_update(words: Sequence[str]) -> JobUpdate:
    """The update of words such as `JobId=7 Partition=large`. Raises Failure with all that no job may be given so."""
    pairs = [word.partition("=") for word in words]
    said = {name.lower(): value for name, sign, value in pairs if sign}
    wrong = [f"{name}: write NAME=VALUE" for name, sign, _ in pairs if not sign]
    named = said.pop("jobid", said.pop("job", ""))
    queue, priority_class = said.pop("partition", ""), said.pop("qos", "")
    priority = said.pop("priority", "")
    if priority not in ("", "0"):
        wrong.append(f"Priority={priority}: a class decides: QOS=CLASS; Priority=0 holds the job")
    wrong += [f"{name}: {NOT_CHANGED.get(name, 'is changed by nobody after the submit')}" for name in said]
    if not named:
        wrong.append("name a job: JobId=JOB")
    if not wrong and not (queue or priority_class or priority):
        wrong.append("nothing is to change; say Partition=, QOS= or Priority=0")
    if wrong:
        raise Failure(Exit.USAGE, f"scontrol update: {'; '.join(wrong)}")
    return JobUpdate(tuple(filter(None, BETWEEN_JOBS.split(named))), queue, priority_class, hold=priority == "0")
