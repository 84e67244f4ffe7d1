"""Fields of `squeue -o` and `-O`: the letter, the title, the long name and the value of each that Slurm has."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing import fields
from tessera.client.slurm.listing.fields import FIELDS, FieldValue, cut
from tessera_schemas.views import JobView

T = TypeVar("T")
LONG_FORMAT_WIDTH = 20
"""Characters of a field of `squeue -O` that says no width."""
PLACE = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


@dataclass(frozen=True, slots=True)
class QueueField:
    """A field by its letter (`squeue -o`), "" for none, and its long name (`squeue -O`)."""

    letter: str
    name: str
    title: str
    value: FieldValue


def _known(line: str) -> QueueField:
    """A field whose value is one of FIELDS, from `letter name title FIELD`; `-` for no letter."""
    letter, name, title, field = line.split()
    return QueueField(letter.replace("-", ""), name, title, FIELDS[field])


def _fixed(line: str) -> QueueField:
    """A field of which a job has nothing: the word that Slurm has there, from `letter name title word`."""
    letter, name, title, word = line.split()
    text = "" if word == '""' else word
    return QueueField(letter.replace("-", ""), name, title, lambda job, now: text)


KNOWN_LINES = """\
a account ACCOUNT Account
A jobid JOBID JobIDRaw
B batchhost EXEC_HOST BatchHost
c mincpus MIN_CPUS CPUsOfPod
C numcpus CPUS NCPUS
D numnodes NODES NNodes
e endtime END_TIME EndOrNone
- deadline DEADLINE Deadline
v reservation RESERVATION Reservation
E dependency DEPENDENCY Dependency
F arrayjobid ARRAY_JOB_ID ArrayJobID
g groupname GROUP Group
G groupid GROUP GID
h oversubscribe OVER_SUBSCRIBE OverSubscribe
i jobarrayid JOBID JobID
j name NAME JobName
K arraytaskid ARRAY_TASK_ID ArrayTaskID
l timelimit TIME_LIMIT Timelimit
L timeleft TIME_LEFT TimeLeft
m minmemory MIN_MEMORY ReqMem
M timeused TIME Elapsed
N nodelist NODELIST NodeList
p priority PRIORITY Priority
P partition PARTITION Partition
q qos QOS QOS
Q prioritylong PRIORITY Priority
r reason REASON Reason
R reasonlist NODELIST(REASON) NodeListReason
S starttime START_TIME StartOrNone
t statecompact ST StateCompact
T state STATE State
u username USER User
U userid UID UID
V submittime SUBMIT_TIME Submit
w wckey WCKEY WCKeyOrNull
b tres-per-node TRES_PER_NODE TresPerNode
- tres-alloc TRES_ALLOC AllocTRES
- numtasks TASKS NTasks
- restartcnt RESTART_COUNT Restarts
- exit_code EXIT_CODE ReturnCode
- pendingtime PENDING_TIME PendingSeconds
- allocnodes ALLOC_NODES NNodes
- cpus-per-task CPUS_PER_TASK CPUsOfPod
"""
"""Fields with a value, as `letter name title FIELD`."""
FIXED_LINES = """\
d mintmpdisk MIN_TMP_DISK 0
f feature FEATURES (null)
H sockets SOCKETS_PER_NODE *
I cores CORES_PER_SOCKET *
J threads THREADS_PER_CORE *
k comment COMMENT (null)
n reqnodes REQ_NODES ""
o command COMMAND (null)
O contiguous CONTIGUOUS 0
s selectjobinfo SELECT_JOBINFO ""
W licenses LICENSES (null)
x excnodes EXC_NODES ""
X corespec CORE_SPEC N/A
y nice NICE 0
Y schednodes SCHEDNODES (null)
z sct S:C:T *:*:*
Z workdir WORK_DIR (null)
- cluster CLUSTER N/A
- network NETWORK (null)
- requeue REQUEUE 1
- reboot REBOOT 0
- batchflag BATCH_FLAG 1
- profile PROFILE (null)
- mcslabel MCSLABEL N/A
- stdin STDIN /dev/null
- stdout STDOUT (null)
- stderr STDERR (null)
- admin_comment ADMIN_COMMENT (null)
- system_comment SYSTEM_COMMENT (null)
- container CONTAINER (null)
"""
"""Fields of which a job here has nothing, with Slurm's own word for that."""
QUEUE_FIELDS: tuple[QueueField, ...] = (
    *map(_known, KNOWN_LINES.splitlines()),
    *map(_fixed, FIXED_LINES.splitlines()),
)
BY_LETTER: Mapping[str, QueueField] = {each.letter: each for each in QUEUE_FIELDS if each.letter}
BY_NAME: Mapping[str, QueueField] = {each.name: each for each in QUEUE_FIELDS}


def _field(name: str, now_ms: int) -> QueueField:
    """A field by its long name in any case, or by a name that `sacct` has for it. Raises Failure."""
    found = BY_NAME.get(name.lower())
    if found is not None:
        return found
    made = fields.column(name, now_ms)
    return QueueField("", name, made.title.upper(), lambda job, now: made.value(job))


def long_lines(names: str, jobs: Sequence[JobView], now_ms: int, titles: bool = True) -> list[str]:
    """Lines as `squeue -O JobID,State:12` makes them: fields of fixed widths. Raises Failure."""
    cells = list[tuple[QueueField, int, bool]]()
    for said in names.split(","):
        name, _, width = said.strip().partition(":")
        if width.lstrip(".-") and not width.lstrip(".-").isdigit():
            raise Failure(Exit.USAGE, f"{said}: write NAME:WIDTH")
        cells.append((_field(name, now_ms), int(width.lstrip(".-") or LONG_FORMAT_WIDTH), width.startswith(".")))
    lines = ["".join(cut(field.title, wide, right) for field, wide, right in cells)] if titles else []
    return lines + ["".join(cut(field.value(job, now_ms), wide, right) for field, wide, right in cells) for job in jobs]


def in_order(jobs: Sequence[JobView], order: str, now_ms: int) -> list[JobView]:
    """Jobs in the order of `squeue --sort`: letters with commas, `-` before one that falls. Raises Failure."""
    sorted_jobs = list(jobs)
    for said in reversed([part.strip() for part in order.split(",") if part.strip()]):
        field = BY_LETTER.get(said.lstrip("+-"))
        if field is None:
            raise Failure(Exit.USAGE, f"--sort {order}: no field {said}; write letters of --format, such as -p,i")
        sorted_jobs.sort(key=partial(_place_of, field.value, now_ms), reverse=said.startswith("-"))
    return sorted_jobs


def _place_of(value: FieldValue, now_ms: int, job: JobView) -> list[tuple[int, str]]:
    """A value to sort by: the numbers in it count as numbers."""
    parts = re.split(r"([0-9]+)", value(job, now_ms))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def rows_as(pattern: str, now_ms: int) -> Callable[[JobView], str]:
    """Lines as `squeue -o` makes them of a pattern such as `%.18i %9P %j`. Raises Failure for an unknown letter."""
    return line_of(pattern, {letter: partial(_value_of, field.value, now_ms) for letter, field in BY_LETTER.items()})


def _value_of(value: FieldValue, now_ms: int, job: JobView) -> str:
    return value(job, now_ms)


def heading(pattern: str) -> str:
    """The titles over lines of jobs."""
    return titles_over(pattern, {letter: field.title for letter, field in BY_LETTER.items()})


def line_of(pattern: str, values: Mapping[str, Callable[[T], str]]) -> Callable[[T], str]:
    """A line of a row by a pattern of letters such as `%.18i %9P %j`. Raises Failure for an unknown letter."""
    unknown = sorted({letter for letter in re.findall(r"%\.?[0-9]*([A-Za-z])", pattern) if letter not in values})
    if unknown:
        raise Failure(Exit.USAGE, f"--format {pattern}: no field %{unknown[0]}; there are %{' %'.join(values)}")
    return lambda row: re.sub(PLACE, lambda match: _fitted(values[match[3]](row), match), pattern)


def titles_over(pattern: str, titles: Mapping[str, str]) -> str:
    """The titles over lines of a pattern."""
    return re.sub(PLACE, lambda match: _fitted(titles[match[3]], match), pattern)


def _fitted(text: str, match: re.Match[str]) -> str:
    return cut(text, int(match[2] or 0), bool(match[1]))
