"""Fields of jobs as `squeue -o`, `sacct -o` and `scontrol` name them, each made of a job's view. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from tessera.client.moments import local_time
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Column
from tessera.client.slurm import words
from tessera_schemas.arrays import has_task
from tessera_schemas.base import number_or_id
from tessera_schemas.views import JobView

T = TypeVar("T")
RANGES_SHOWN = 12
"""Characters of an array's tasks that are not queued yet."""
HOUR_MS = 3_600_000

STATES = frozenset({*words.STATES.values(), *words.LONG_STATES.values(), "TO", "TIMEOUT", "ALL"})
"""What jobs are chosen by: short words and long ones."""
NEVER = frozenset(
    {"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED"}
    | {"BF", "DL", "NF", "OOM", "PR", "RQ", "RS", "RV", "S"}
)
"""States of Slurm's that no job has here; scripts ask for them all the same."""

Value = Callable[[JobView, int], str]
"""A field of a job as of a time in milliseconds."""


def job_id_of(job: JobView) -> str:
    """The job's number, of a task `ARRAY_7`, of an array `ARRAY_[8-99%4]` with the tasks that are not queued yet."""
    if job.task_of:
        return f"{array_of(job)}_{job.task}"
    if job.array is None or not job.array.left:
        return raw_id_of(job)
    left = job.array.left if len(job.array.left) <= RANGES_SHOWN else f"{job.array.left[:RANGES_SHOWN]}..."
    return f"{raw_id_of(job)}_[{left}{f'%{job.array.limit}' if job.array.limit else ''}]"


def raw_id_of(job: JobView) -> str:
    """The job's own number, a task's too; the id of one that is older than numbers."""
    return number_or_id(job.number, job.job_id)


def array_of(job: JobView) -> str:
    """The number of a task's array; of any other job its own."""
    return number_or_id(job.array_number, job.task_of) if job.task_of else raw_id_of(job)


def is_named(job: JobView, wanted: set[str]) -> bool:
    """Whether a job is meant by its number, its id, its name, `ARRAY_7`, or its array."""
    named = {job.job_id, raw_id_of(job), job.name, job_id_of(job), job.task_of, array_of(job)}
    named |= {f"{job.task_of}_{job.task}"} if job.task_of else set()
    return not wanted.isdisjoint(named - {""})


def unknown(jobs: Iterable[JobView], named: str | None) -> list[str]:
    """Of a list with commas the names that no job has; `ARRAY_7` is known where the array has that task."""
    left = dict.fromkeys(name for name in (named or "").split(",") if name)
    for job in jobs if left else ():
        tasks = job.array.tasks if job.array is not None else ""
        ids = (job.job_id, raw_id_of(job))
        for name in [name for name in left if is_named(job, {name}) or _is_task(name, ids, tasks)]:
            del left[name]
    return list(left)


def _is_task(name: str, ids: Collection[str], tasks: str) -> bool:
    of, _, index = name.rpartition("_")
    return bool(tasks) and of in ids and index.isdecimal() and has_task(tasks, int(index))


def select(
    jobs: Iterable[JobView],
    *,
    user: str | None = None,
    queue: str | None = None,
    name: str | None = None,
    named: str | None = None,
    states: str | None = None,
    nodes: str | None = None,
) -> list[JobView]:
    """
    The jobs for which all hold that are given; all but `user`, a person or a tenant, are lists with commas.

    Raises Failure.
    """
    names, queues, on = (None if text is None else set(text.split(",")) for text in (name, queue, nodes))
    wanted, among = set((named or "").split(",")), set((states or "").upper().split(","))
    if states is not None and (unknown := among - STATES - NEVER):
        raise Failure(Exit.USAGE, f"{min(unknown)}: there is no such state; there are {', '.join(sorted(STATES))}")
    return [
        job
        for job in jobs
        if user in (None, job.tenant, job.user)
        and (queues is None or job.queue in queues)
        and (names is None or job.name in names or name == job.name)
        and (on is None or any(place.node in on for place in job.placements))
        and (named is None or is_named(job, wanted))
        and (states is None or not among.isdisjoint({"ALL", short_state_of(job), state_of(job)}))
    ]


def state_of(job: JobView) -> str:
    """The long word for a job's state."""
    if job.phase == "failed" and job.reason is not None and job.reason.code == "TimeLimit":
        return "TIMEOUT"
    return words.LONG_STATES.get(job.phase, job.phase.upper())


def short_state_of(job: JobView) -> str:
    """The short word for a job's state."""
    return "TO" if state_of(job) == "TIMEOUT" else words.state_of(job.phase)


def elapsed_ms(job: JobView, now_ms: int) -> int:
    """Milliseconds that its run has taken, or takes; 0 before it starts."""
    return max(0, (job.ended_ts or now_ms) - job.started_ts) if job.started_ts else 0


def gpu_hours(job: JobView, now_ms: int) -> str:
    """GPU-hours that all its runs held, rounded to three decimals; 0.001 at least for whatever was held."""
    held = job.held_gpu_milli_ms(now_ms)
    thousandths = max((held + HOUR_MS // 2) // HOUR_MS, int(held > 0))
    return f"{thousandths // 1000}.{thousandths % 1000:03}"


def tres_of(job: JobView) -> str:
    """What it asks for as Slurm counts it, of a job with a run what that holds: GPUs and nodes."""
    gpus = f"gres/gpu={job.gpu_milli_now / 1000:g}," if job.gpu_milli_now else ""
    return f"{gpus}node={nodes_count(job)}"


def nodes_count(job: JobView) -> int:
    """Number of nodes that its run holds; without a run as many as it has pods."""
    return len({place.node for place in job.placements}) or job.pods


def exit_code_of(job: JobView) -> str:
    """`code:signal`, as sacct prints it."""
    code = job.exit_code or 0
    return f"0:{code - 128}" if code > 128 else f"{code}:0"


def place_or_reason(job: JobView, now_ms: int) -> str:
    """The nodes of a job that holds some, else why it waits."""
    if job.placements:
        return nodes_of(job, now_ms)
    return "" if job.reason is None else f"({words.WHY.get(job.reason.code, job.reason.code)})"


def nodes_of(job: JobView, now_ms: int) -> str:
    """Nodes of a job, folded as Slurm folds them."""
    return words.node_list([place.node for place in job.placements])


def slurm_time(ms: int) -> str:
    """A time in the local zone without its name, as Slurm writes it, and as `sacct -S` reads it."""
    return local_time(ms).strftime("%Y-%m-%dT%H:%M:%S") if ms else "Unknown"


FIELDS: Mapping[str, Value] = {
    "JobID": lambda job, now: job_id_of(job),
    "JobIDRaw": lambda job, now: raw_id_of(job),
    "ArrayJobID": lambda job, now: array_of(job),
    "ArrayTaskID": lambda job, now: str(job.task) if job.task_of else "N/A",
    "JobName": lambda job, now: job.name,
    "Partition": lambda job, now: job.queue,
    "Account": lambda job, now: job.tenant,
    "User": lambda job, now: job.user or job.tenant,
    "QOS": lambda job, now: job.priority_class,
    "Priority": lambda job, now: str(job.priority),
    "StateCompact": lambda job, now: short_state_of(job),
    "State": lambda job, now: state_of(job),
    "ExitCode": lambda job, now: exit_code_of(job),
    "Elapsed": lambda job, now: words.elapsed(elapsed_ms(job, now)),
    "ElapsedRaw": lambda job, now: str(elapsed_ms(job, now) // 1000),
    "GPUs": lambda job, now: f"{job.gpu_milli_now / 1000:g}",
    "GPUHours": gpu_hours,
    "NNodes": lambda job, now: str(nodes_count(job)),
    "NTasks": lambda job, now: str(job.pods_now),
    "NodeList": nodes_of,
    "Reason": lambda job, now: "None" if job.reason is None else words.WHY.get(job.reason.code, job.reason.code),
    "NodeListReason": place_or_reason,
    "Submit": lambda job, now: slurm_time(job.submitted_ts),
    "Start": lambda job, now: slurm_time(job.started_ts),
    "End": lambda job, now: slurm_time(job.ended_ts),
    "Age": lambda job, now: words.elapsed(now - job.submitted_ts),
    "Restarts": lambda job, now: str(job.restarts),
    "Dependency": lambda job, now: ",".join(each.text() for each in job.after) or "(null)",
    "AllocTRES": lambda job, now: tres_of(job) if job.placements or job.ended_ts else "",
    "ReqTRES": lambda job, now: tres_of(job.model_copy(update={"placements": (), "held_pods": 0})),
}
NOT_MEASURED: tuple[str, ...] = (
    "MaxRSS",
    "AveRSS",
    "AveCPU",
    "MinCPU",
    "TotalCPU",
    "UserCPU",
    "SystemCPU",
    "CPUTime",
    "MaxVMSize",
)
NOT_MEASURED += ("AveVMSize", "ConsumedEnergy", "ReqMem", "AllocCPUS", "NCPUS", "ReqCPUS", "Timelimit", "WorkDir")
"""Fields that Slurm has and nobody measures here: empty, as there where nothing was gathered."""
OTHER_NAMES: Mapping[str, str] = {
    "name": "JobName",
    "jobarrayid": "JobID",
    "username": "User",
    "timeused": "Elapsed",
    "numnodes": "NNodes",
    "numtasks": "NTasks",
    "allocnodes": "NNodes",
    "nodes": "NodeList",
    "reasonlist": "NodeListReason",
    "submittime": "Submit",
    "starttime": "Start",
    "endtime": "End",
    "prioritylong": "Priority",
    "restartcnt": "Restarts",
}
"""Names of `squeue -O`, and further ones of `sacct`, in small letters."""
NUMBERS = frozenset({"Priority", "Elapsed", "ElapsedRaw", "GPUs", "GPUHours", "NNodes", "NTasks", "Age", "Restarts"})
NAMES = frozenset({"JobName", "Partition", "Account", "User", "QOS", "NodeList", "Reason", "NodeListReason"})
LETTERS: Mapping[str, str] = {
    "i": "JobID",
    "A": "JobIDRaw",
    "F": "ArrayJobID",
    "K": "ArrayTaskID",
    "j": "JobName",
    "P": "Partition",
    "a": "Account",
    "u": "User",
    "q": "QOS",
    "Q": "Priority",
    "t": "StateCompact",
    "T": "State",
    "M": "Elapsed",
    "b": "GPUs",
    "D": "NNodes",
    "C": "NTasks",
    "N": "NodeList",
    "r": "Reason",
    "R": "NodeListReason",
    "V": "Submit",
    "S": "Start",
    "e": "End",
    "E": "Dependency",
}
"""The letters of `squeue -o`."""
TITLES: Mapping[str, str] = {
    "JobName": "NAME",
    "StateCompact": "ST",
    "Elapsed": "TIME",
    "NNodes": "NODES",
    "NodeListReason": "NODELIST(REASON)",
}
"""Titles of squeue's columns that are not the field's own name."""


WIDTH = re.compile(r"(?P<name>[^%:]+)(?:[%:](?P<right>\.?)(?P<left>-?)(?P<width>[0-9]+))?")


def column(said: str, now_ms: int, title: str = "") -> Column[JobView]:
    """
    A column of a table by the name of its field, whatever its letters' case, and a width: `JobName%20`.

    Raises Failure.
    """
    match = WIDTH.fullmatch(said)
    known = None if match is None else _known(match["name"])
    if match is None or known is None:
        raise Failure(Exit.USAGE, f"{said}: there is no such field; there are {', '.join(FIELDS)}")
    value, width = FIELDS.get(known, _nothing), int(match["width"] or 0)
    right = known in NUMBERS if not width else not match["left"]

    def shown(job: JobView) -> str:
        return _cut(value(job, now_ms), width, right)

    return Column(title or known, shown, shrinks=known in NAMES and not width, right=right)


def _nothing(job: JobView, now_ms: int) -> str:
    return ""


def _known(name: str) -> str | None:
    names = {each.lower(): each for each in (*FIELDS, *NOT_MEASURED)}
    return names.get(name.lower()) or OTHER_NAMES.get(name.lower())


LONG_FORMAT_WIDTH = 20
"""Characters of a field of `squeue -O` that says no width."""


def long_lines(names: str, jobs: Sequence[JobView], now_ms: int, titles: bool = True) -> list[str]:
    """Lines as `squeue -O JobID,State:12` makes them: fields of fixed widths. Raises Failure."""
    cells = list[tuple[str, Callable[[JobView], str]]]()
    for said in names.split(","):
        name, _, width = said.strip().partition(":")
        if width.lstrip(".-") and not width.lstrip(".-").isdigit():
            raise Failure(Exit.USAGE, f"{said}: write NAME:WIDTH")
        wide = int(width.lstrip(".-") or LONG_FORMAT_WIDTH)
        made = column(name, now_ms)
        right = width.startswith(".")
        cells.append((_cut(TITLES.get(made.title, made.title.upper()), wide, right), _cell(made, wide, right)))
    lines = ["".join(title for title, _ in cells)] if titles else []
    return lines + ["".join(cell(job) for _, cell in cells) for job in jobs]


def _cell(made: Column[JobView], width: int, right: bool) -> Callable[[JobView], str]:
    return lambda job: _cut(made.value(job), width, right)


def _cut(text: str, width: int, right: bool) -> str:
    """The text in exactly so many characters; 0: as it is."""
    if not width:
        return text
    return text[:width].rjust(width) if right else text[:width].ljust(width)


def rows_as(pattern: str, now_ms: int) -> Callable[[JobView], str]:
    """Lines as `squeue -o` makes them of a pattern such as `%.18i %9P %j`. Raises Failure for an unknown letter."""
    return line_of(pattern, {letter: partial(_value_of, FIELDS[name], now_ms) for letter, name in LETTERS.items()})


def _value_of(value: Value, now_ms: int, job: JobView) -> str:
    return value(job, now_ms)


def line_of(pattern: str, values: Mapping[str, Callable[[T], str]]) -> Callable[[T], str]:
    """A line of a row by a pattern of letters such as `%.18i %9P %j`. Raises Failure for an unknown letter."""
    unknown = sorted({letter for letter in re.findall(r"%\.?[0-9]*([A-Za-z])", pattern) if letter not in values})
    if unknown:
        raise Failure(Exit.USAGE, f"--format {pattern}: no field %{unknown[0]}; there are %{' %'.join(values)}")
    return lambda row: re.sub(PLACE, lambda match: _fitted(values[match[3]](row), match), pattern)


def heading(pattern: str) -> str:
    """The titles over lines of jobs."""
    return titles_over(pattern, {letter: TITLES.get(name, name.upper()) for letter, name in LETTERS.items()})


def titles_over(pattern: str, titles: Mapping[str, str]) -> str:
    """The titles over lines of a pattern."""
    return re.sub(PLACE, lambda match: _fitted(titles[match[3]], match), pattern)


PLACE = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


def _fitted(text: str, match: re.Match[str]) -> str:
    return _cut(text, int(match[2] or 0), bool(match[1]))
