"""Fields of jobs as `squeue -o`, `sacct -o` and `scontrol` name them, each made of a job's view. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from tessera.client.connect.shard_views import ENDED
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing import words
from tessera.client.slurm.listing.words import group_of, uid_of
from tessera.client.slurm.values import Said, hosts_of
from tessera.client.views.rendering import Column, local_time
from tessera_schemas.base import number_or_id
from tessera_schemas.views import JobView
from tessera_schemas.work.arrays import has_task

RANGES_SHOWN = 12
"""Characters of an array's tasks that are not queued yet."""
HOUR_MS = 3_600_000

STATES = frozenset(
    {*words.STATES.values(), *words.LONG_STATES.values(), *words.STATES_OF_FAILURE.values(), "TO", "DL", "ALL"}
)
"""What jobs are chosen by: short words and long ones."""
NEVER = frozenset(
    {"BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED"}
    | {"BF", "OOM", "PR", "RQ", "RS", "RV", "S"}
)
"""States of Slurm's that no job has here; scripts ask for them all the same."""

FieldValue = Callable[[JobView, int], str]
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
    owner: str | None = None,
    queue: str | None = None,
    name: str | None = None,
    named: str | None = None,
    states: str | None = None,
    nodes: str | None = None,
) -> list[JobView]:
    """
    The jobs for which all hold that are given; all but `owner` are lists with commas, `user` of people and tenants,
    `nodes` of names as `n[1-2],n7`. Raises Failure.
    """
    names, queues = (None if text is None else set(text.split(",")) for text in (name, queue))
    on = None if nodes is None else set(hosts_of(Said("squeue", "nodelist", nodes)))
    people = None if user is None else {*user.split(","), user}
    wanted, among = set((named or "").split(",")), set((states or "").upper().split(","))
    if states is not None and (unknown := among - STATES - NEVER):
        raise Failure(Exit.USAGE, f"{min(unknown)}: there is no such state; there are {', '.join(sorted(STATES))}")
    return [
        job
        for job in jobs
        if (people is None or not people.isdisjoint({job.tenant, job.user} - {""}))
        and (owner is None or job.user == owner)
        and (queues is None or job.queue in queues)
        and (names is None or job.name in names or name == job.name)
        and (on is None or not on.isdisjoint(node_names(job)))
        and (named is None or is_named(job, wanted))
        and (states is None or not among.isdisjoint({"ALL", short_state_of(job), state_of(job)}))
    ]


def state_of(job: JobView) -> str:
    """The long word for a job's state."""
    code = "" if job.reason is None else job.reason.code
    if (job.phase == "failed" and code in words.STATES_OF_FAILURE) or (job.phase, code) == words.MISSED:
        return words.STATES_OF_FAILURE[code]
    return words.LONG_STATES.get(job.phase, job.phase.upper())


def short_state_of(job: JobView) -> str:
    """The short word for a job's state."""
    return {"TIMEOUT": "TO", "NODE_FAIL": "NF", "DEADLINE": "DL"}.get(state_of(job), words.state_of(job.phase))


def elapsed_ms(job: JobView, now_ms: int) -> int:
    """Milliseconds that its run has taken, or takes; 0 before it starts."""
    return max(0, (job.ended_ts or now_ms) - job.started_ts) if job.started_ts else 0


def gpu_hours(job: JobView, now_ms: int) -> str:
    """GPU-hours that all its runs held, rounded to three decimals; 0.001 at least for whatever was held."""
    held = job.held_gpu_milli_ms(now_ms)
    thousandths = max((held + HOUR_MS // 2) // HOUR_MS, int(held > 0))
    return f"{thousandths // 1000}.{thousandths % 1000:03}"


def tres_of(job: JobView) -> str:
    """
    Resources that the job asks for, of one with a run what that holds, as Slurm counts them: CPUs, memory, nodes, GPUs
    and further generic resources.
    """
    gpus = f",gres/gpu={gpus_of(job)}" if job.as_task.gpu_milli_now else ""
    gpus += "".join(f",gres/{name}={count}" for name, count in words.gres_of(job.devices_now, job.gres).items())
    memory = f"mem={memory_of(job)}," if job.as_task.memory_bytes else ""
    return f"cpu={cpus_of(job)},{memory}node={nodes_count(job)}{gpus}"


def nodes_count(job: JobView) -> int:
    """Number of nodes that its run holds or held; without a run as many as it has pods."""
    return len(node_names(job)) or job.pods


def node_names(job: JobView) -> tuple[str, ...]:
    """Names of the nodes that the job's run holds, or held to the job's end, by rank."""
    return tuple(dict.fromkeys(place.node for place in job.placements)) or job.nodes


def _measured(job: JobView, name: Literal["gpuutil", "gpumem"]) -> str:
    """Mean use of the job's GPUs in percent, or the most memory used on one, as Slurm counts them; "" unmeasured."""
    use = job.gpu_use
    if use is None or (name == "gpumem" and not use.gpu_memory_mib):
        return ""
    return f"gres/gpumem={use.memory_mib}M" if name == "gpumem" else f"gres/gpuutil={use.percent}"


def was_placed(job: JobView) -> bool:
    """Whether the job's run has its nodes, or had them to the job's end."""
    return bool(node_names(job) or job.started_ts)


def exit_code_of(job: JobView) -> str:
    """`code:signal`, as sacct prints it."""
    code = job.exit_code or 0
    return f"0:{code - 128}" if code > 128 else f"{code}:0"


def place_or_reason(job: JobView, now_ms: int) -> str:
    """The nodes of a job that holds some or held them until it ended well or was cancelled, else why not."""
    if node_names(job) and job.phase != "failed":
        return nodes_of(job, now_ms)
    reason = reason_of(job)
    return "" if reason == "None" and job.phase in ENDED else f"({reason})"


def nodes_of(job: JobView, now_ms: int) -> str:
    """Nodes of a job, folded as Slurm folds them."""
    return words.node_list(node_names(job))


def time_of(ms: int, otherwise: str = "Unknown") -> str:
    """A time in the local zone without its name, as Slurm writes it, and as `sacct -S` reads it."""
    return local_time(ms).strftime("%Y-%m-%dT%H:%M:%S") if ms else otherwise


def reason_of(job: JobView) -> str:
    """Slurm's word for why a job waits or why it failed; `None` of one that runs, was cancelled or succeeded."""
    if job.reason is None or job.phase in ("succeeded", "cancelled"):
        return "None"
    if job.phase == "failed":
        return words.WHY_FAILED.get(job.reason.code, "NonZeroExitCode" if job.exit_code else "SystemFailure")
    if job.reason.code == "ArrayTasks" and job.array is not None and job.array.limit:
        return "JobArrayTaskLimit"
    return words.WHY.get(job.reason.code, job.reason.code)


def accounted_state_of(job: JobView) -> str:
    """The long word of `sacct`, which says of a cancelled job by which user, where the job's reason names one."""
    why = job.reason.detail if job.phase == "cancelled" and job.reason is not None else ""
    match = re.search(r"\bby (\S+)$", why)
    return f"{state_of(job)} by {uid_of(match[1])}" if match else state_of(job)


def gpus_of(job: JobView) -> str:
    """GPUs that its run holds, or else its gang asks for; of an array those of one task."""
    return f"{job.as_task.gpu_milli_now / 1000:g}"


def cpus_of(job: JobView, pods: int = 1) -> int:
    """CPUs of the gang, or of one of so many parts, rounded up; at least 1, as a pod that asks for none has a share."""
    return max(1, -(-job.as_task.cpu_milli // (1000 * pods)))


def memory_of(job: JobView, pods: int = 1) -> str:
    """Memory of the gang, or of one of so many parts, in MiB: `64G`, `512M`; `0` where the job says none."""
    mib = job.as_task.memory_bytes // pods >> 20
    return f"{mib >> 10}G" if mib and mib % 1024 == 0 else f"{mib}M" if mib else "0"


def time_limit_of(job: JobView, written: Callable[[int], str] = words.elapsed) -> str:
    """The time limit; of an ended job that is older than numbers it is not known."""
    if job.phase in ENDED and not job.number:
        return "NOT_SET"
    return written(1000 * job.time_limit_seconds) if job.time_limit_seconds else "UNLIMITED"


def time_left_of(job: JobView, now_ms: int) -> str:
    """Rest of the time limit, as Slurm writes it."""
    if not job.time_limit_seconds:
        return time_limit_of(job)
    return words.elapsed(1000 * job.time_limit_seconds - elapsed_ms(job, now_ms))


def _last_ms(job: JobView) -> int:
    """Time at which the time limit ends a run; 0 where nothing does."""
    return job.started_ts + 1000 * job.time_limit_seconds if job.started_ts and job.time_limit_seconds else 0


def per_node_of(job: JobView) -> str:
    """The GPUs and further generic resources of a node, as a pod counts for one."""
    gpu_milli = job.as_task.gpu_milli
    gpus = {"gpu": gpu_milli / 1000} if gpu_milli else {}
    asked = gpus | words.gres_of(dict(job.device_classes), job.gres)
    return ",".join(f"gres/{name}:{count / job.pods:g}" for name, count in asked.items()) or "N/A"


FIELDS: Mapping[str, FieldValue] = {
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
    "GPUs": lambda job, now: gpus_of(job),
    "GPUHours": gpu_hours,
    "TRESUsageInAve": lambda job, now: _measured(job, "gpuutil"),
    "TRESUsageInMax": lambda job, now: _measured(job, "gpumem"),
    "Cost": lambda job, now: job.cost_at(now),
    "NNodes": lambda job, now: str(nodes_count(job)),
    "OverSubscribe": lambda job, now: "NO" if job.exclusive else "OK",
    "NTasks": lambda job, now: str(job.pods_now),
    "NodeList": nodes_of,
    "Reason": lambda job, now: reason_of(job),
    "NodeListReason": place_or_reason,
    "Submit": lambda job, now: time_of(job.submitted_ts),
    "Start": lambda job, now: time_of(job.started_ts),
    "End": lambda job, now: time_of(job.ended_ts),
    "Age": lambda job, now: words.elapsed(now - job.submitted_ts),
    "Restarts": lambda job, now: str(job.restarts),
    "Dependency": lambda job, now: ",".join(each.text() for each in job.after) or "(null)",
    "AllocTRES": lambda job, now: tres_of(job) if was_placed(job) else "",
    "ReqTRES": lambda job, now: tres_of(job.model_copy(update={"placements": (), "nodes": (), "held_pods": 0})),
    "WCKey": lambda job, now: job.project,
    "WCKeyOrNull": lambda job, now: job.project or "(null)",
    "UID": lambda job, now: str(uid_of(job.user)),
    "Group": lambda job, now: group_of(job.user)[0],
    "GID": lambda job, now: str(group_of(job.user)[1]),
    "BatchHost": lambda job, now: next(iter(node_names(job)), "n/a"),
    "NCPUS": lambda job, now: str(cpus_of(job)),
    "AllocCPUS": lambda job, now: str(cpus_of(job)) if was_placed(job) else "0",
    "ReqCPUS": lambda job, now: str(cpus_of(job)),
    "CPUsOfPod": lambda job, now: str(cpus_of(job, job.pods)),
    "ReqMem": lambda job, now: memory_of(job, job.pods),
    "Timelimit": lambda job, now: time_limit_of(job),
    "TimeLeft": time_left_of,
    "TresPerNode": lambda job, now: per_node_of(job),
    "ReturnCode": lambda job, now: str(job.exit_code or 0),
    "DerivedExitCode": lambda job, now: exit_code_of(job),
    "Eligible": lambda job, now: time_of(job.submitted_ts),
    "StartOrNone": lambda job, now: time_of(job.started_ts, "N/A"),
    "Deadline": lambda job, now: time_of(job.deadline_ts, "N/A"),
    "Reservation": lambda job, now: job.reservation or "(null)",
    "EndOrNone": lambda job, now: time_of(job.ended_ts or _last_ms(job), "N/A"),
    "PendingSeconds": lambda job, now: str(((job.started_ts or job.ended_ts or now) - job.submitted_ts) // 1000),
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
NOT_MEASURED += ("AveVMSize", "ConsumedEnergy", "WorkDir", "Cluster", "Comment", "SubmitLine", "MaxDiskRead")
NOT_MEASURED += ("CPUTimeRAW", "TRESUsageInTot", "ConsumedEnergyRaw")
NOT_MEASURED += ("MaxDiskWrite", "AveDiskRead", "AveDiskWrite", "AdminComment", "Constraints", "Flags")
"""Fields that Slurm has and nobody measures here: empty, as there where nothing was gathered."""
OTHER_NAMES: Mapping[str, str] = {"name": "JobName", "allocnodes": "NNodes", "timelimitraw": "Timelimit"}
"""Further names of `sacct`'s fields, in small letters."""
ACCOUNTING: Mapping[str, FieldValue] = {
    "State": lambda job, now: accounted_state_of(job),
    "Elapsed": lambda job, now: words.elapsed_in_full(elapsed_ms(job, now)),
    "Timelimit": lambda job, now: time_limit_of(job, words.elapsed_in_full),
    "NodeList": lambda job, now: nodes_of(job, now) or ("" if was_placed(job) else "None assigned"),
}
"""Fields that `sacct` writes in another way than `squeue`."""
NUMBERS = frozenset({"Priority", "Elapsed", "ElapsedRaw", "GPUs", "GPUHours", "NNodes", "NTasks", "Age", "Restarts"})
NUMBERS |= {"NCPUS", "AllocCPUS", "ReqCPUS"}
NAMES = frozenset({"JobName", "Partition", "Account", "User", "QOS", "NodeList", "Reason", "NodeListReason"})
TITLES: Mapping[str, str] = {
    "JobName": "NAME",
    "StateCompact": "ST",
    "Elapsed": "TIME",
    "Timelimit": "TIME_LIMI",
    "NNodes": "NODES",
    "NodeListReason": "NODELIST(REASON)",
}
"""Titles of squeue's columns that are not the field's own name."""


WIDTH = re.compile(r"(?P<name>[^%:]+)(?:[%:](?P<right>\.?)(?P<left>-?)(?P<width>[0-9]+))?")


def column(said: str, now_ms: int, title: str = "", own: Mapping[str, FieldValue] = {}) -> Column[JobView]:
    """
    A column of a table by the name of its field, whatever its letters' case, and a width: `JobName%20`.

    `own` are values that go before FIELDS. Raises Failure.
    """
    match = WIDTH.fullmatch(said)
    known = None if match is None else _known(match["name"])
    if match is None or known is None:
        raise Failure(Exit.USAGE, f"{said}: there is no such field; there are {', '.join(FIELDS)}")
    value, width = own.get(known) or FIELDS.get(known, _nothing), int(match["width"] or 0)
    right = known in NUMBERS if not width else not match["left"]

    def shown(job: JobView) -> str:
        return cut(value(job, now_ms), width, right)

    return Column(title or known, shown, shrinks=known in NAMES and not width, right=right)


def _nothing(job: JobView, now_ms: int) -> str:
    return ""


def _known(name: str) -> str | None:
    names = {each.lower(): each for each in (*FIELDS, *NOT_MEASURED)}
    return names.get(name.lower()) or OTHER_NAMES.get(name.lower())


def cut(text: str, width: int, right: bool) -> str:
    """The text in exactly so many characters; 0: as it is."""
    if not width:
        return text
    return text[:width].rjust(width) if right else text[:width].ljust(width)
