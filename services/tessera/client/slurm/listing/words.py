"""Slurm's words for states, reasons, times and lists of nodes."""

import getpass
import grp
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from tessera.client.outcomes import Exit, Failure
from tessera_schemas.work.arrays import task_count, task_index
from tessera_schemas.work.run_ends import RUN_ENDS, Whose

STATES: Mapping[str, str] = {
    "queued": "PD",
    "allocated": "CF",
    "binding": "CF",
    "running": "R",
    "evicting": "CG",
    "succeeded": "CD",
    "failed": "F",
    "cancelled": "CA",
    "requeued": "RQ",
    "preempted": "PR",
    "node_fail": "NF",
}
"""The last three are of runs after which their job was queued again."""

LONG_STATES: Mapping[str, str] = {
    "queued": "PENDING",
    "allocated": "CONFIGURING",
    "binding": "CONFIGURING",
    "running": "RUNNING",
    "evicting": "COMPLETING",
    "succeeded": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}

STATES_OF_FAILURE: Mapping[str, str] = {
    "TimeLimit": "TIMEOUT",
    "DeadlineMissed": "DEADLINE",
    **{code: "NODE_FAIL" for code, end in RUN_ENDS.items() if end.whose is Whose.NODE},
}
"""Slurm's word for a job that failed for these reasons, those of nodes by a rule of the job alone."""

MISSED = ("cancelled", "DeadlineMissed")
"""Phase and reason of a job that has not failed, and that `STATES_OF_FAILURE` has a word for."""

WHY: Mapping[str, str] = {
    "WaitingForTurn": "Priority",
    "BehindQueueHead": "Priority",
    "BehindReservation": "Priority",
    "WaitingForQuota": "QOSGrpGRES",
    "NoFit": "Resources",
    "Reserved": "Resources",
    "WaitingForData": "Resources",
    "NodesBooked": "ReqNodeNotAvail",
    "WaitingForWindow": "Reservation",
    "NoNodes": "ReqNodeNotAvail",
    "WaitingForPreemptedWorkloads": "Resources",
    "Backoff": "BeginTime",
    "BeginTime": "BeginTime",
    "DependencyNotMet": "Dependency",
    "TargetNotRunning": "Dependency",
    "DependencyNeverSatisfied": "DependencyNeverSatisfied",
    "ArrayTasks": "None",
    "ArrayLimit": "JobArrayTaskLimit",
    "OnHold": "JobHeldUser",
    "HeldByOperator": "JobHeldAdmin",
    "QueueStopped": "PartitionDown",
    "NoSuchQueue": "PartitionDown",
}
"""Slurm's word for a reason to wait; others keep ours."""

WHY_FAILED: Mapping[str, str] = {
    "PodFailed": "NonZeroExitCode",
    "AttemptsExhausted": "NonZeroExitCode",
    "TasksFailed": "NonZeroExitCode",
    "TimeLimit": "TimeLimit",
    "BindRefused": "JobLaunchFailure",
    "StartTimeout": "JobLaunchFailure",
    "PodRefusedByNode": "JobLaunchFailure",
    "ImageNotPulled": "JobLaunchFailure",
    "ImageNotFound": "JobLaunchFailure",
    "StartsStall": "JobLaunchFailure",
    "NodeLost": "NodeDown",
    "NodeShrunk": "NodeDown",
    "NodeRestarted": "NodeDown",
    "NodeShutDown": "NodeDown",
    "NodePressure": "NodeDown",
    "Idle": "InactiveLimit",
}
"""Slurm's word for a reason to fail; where it has none, `SystemFailure`."""


def state_of(phase: str) -> str:
    """Slurm's code for a phase; where Slurm has none, the first two letters as capitals."""
    return STATES.get(phase, phase[:2].upper())


TASKS_OF = re.compile(r"(?P<array>.+)_\[(?P<tasks>[0-9,:%-]+)\]")


def each_named(names: Iterable[str]) -> list[str]:
    """Names of jobs, with `ARRAY_[1,3-4]` as ARRAY_1, ARRAY_3 and ARRAY_4. Raises Failure for ranges that are none."""
    found = list[str]()
    for name in names:
        match = TASKS_OF.fullmatch(name)
        if match is None:
            found.append(name)
            continue
        tasks = match["tasks"].partition("%")[0]  # the limit, as squeue shows it
        try:
            indexes = [task_index(tasks, position) for position in range(task_count(tasks))]
        except ValueError as error:
            raise Failure(Exit.USAGE, f"job {name}: {error}") from error
        found += [f"{match['array']}_{index}" for index in indexes]
    return found


def elapsed(milliseconds: int) -> str:
    """`1-02:03:04`, `2:03:04` or `3:04`, as squeue prints a time."""
    total = max(0, milliseconds) // 1000
    days, rest = divmod(total, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def elapsed_in_full(milliseconds: int) -> str:
    """`1-02:03:04` or `00:03:04`, as sacct and scontrol print a time."""
    days, _, rest = elapsed(milliseconds).rpartition("-")
    parts = rest.split(":")
    return (f"{days}-" if days else "") + ":".join(part.zfill(2) for part in ["0"] * (3 - len(parts)) + parts)


def node_list(names: Sequence[str]) -> str:
    """`gpu-[1-3,7],other`: names that differ in their last number are put together."""
    stems: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        stem = re.sub(r"[0-9]+$", "", name)
        stems.setdefault(stem, []).append(name[len(stem) :])
    return ",".join(_folded(stem, numbers) for stem, numbers in sorted(stems.items()))


def _folded(stem: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return stem + numbers[0]
    ranges: list[list[str]] = []
    for number in sorted(numbers, key=lambda text: (len(text), text)):
        last = ranges[-1][-1] if ranges else ""
        if last and number and len(last) == len(number) and int(number) == int(last) + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return f"{stem}[{','.join('-'.join(part) for part in ranges)}]"


NOBODY = 65534
"""Number of a user that this machine does not know."""


@cache
def uid_of(name: str) -> int:
    """Number of the user of this name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # ValueError: a name with a zero byte
        return NOBODY


@cache
def group_of(name: str) -> tuple[str, int]:
    """Name and number of the user's first group."""
    try:
        gid = pwd.getpwnam(name).pw_gid
        return grp.getgrgid(gid).gr_name, gid
    except (KeyError, ValueError):
        return "nogroup", NOBODY


def submitter() -> str:
    """Name of the user who submits, by which people of a tenant take turns; "" where the machine does not know it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:63].rstrip("._-")


def gres_of(classes: Mapping[str, int], names: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Devices of classes by generic resource, in order, but for GPUs: these are counted as such."""
    word, found = dict(names), dict[str, int]()
    for device_class, count in classes.items():
        name = word.get(device_class, device_class)
        if name.partition(":")[0] != "gpu":
            found[name] = found.get(name, 0) + count
    return dict(sorted(found.items()))
