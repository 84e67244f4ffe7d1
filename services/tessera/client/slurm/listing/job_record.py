"""A job, a partition and the configuration as `scontrol show` prints them, line by line. Pure."""

from collections.abc import Sequence

from tessera.client.slurm.listing import fields, words
from tessera.client.slurm.listing.words import group_of, uid_of
from tessera_schemas.views import JobView
from tessera_schemas.work.arrays import TASKS_MAX


def job_lines(job: JobView, now_ms: int) -> str:
    """A job in Slurm's order and with Slurm's names; what Tessera does not know of a job is left out."""

    def value(name: str) -> str:
        return fields.FIELDS[name](job, now_ms)

    array = f"ArrayJobId={fields.array_of(job)} ArrayTaskId={_tasks_of(job)} " if job.task_of or job.array else ""
    user, (group, gid) = value("User"), group_of(job.user)
    restarts, limit = value("Restarts"), fields.ACCOUNTING["Timelimit"](job, now_ms)
    wckey = f" WCKey={job.project}" if job.project else ""
    deadline = value("Deadline")
    lines = [
        f"JobId={fields.raw_id_of(job)} {array}JobName={job.name}",
        f"UserId={user}({uid_of(job.user)}) GroupId={group}({gid}) MCS_label=N/A",
        f"Priority={job.priority} Nice=0 Account={job.tenant} QOS={job.priority_class}{wckey}",
        f"JobState={fields.state_of(job)} Reason={fields.reason_of(job)} Dependency={value('Dependency')}",
        f"Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={fields.exit_code_of(job)}",
        f"RunTime={words.elapsed_in_full(fields.elapsed_ms(job, now_ms))} TimeLimit={limit} TimeMin=N/A",
        f"SubmitTime={fields.time_of(job.submitted_ts)} EligibleTime={fields.time_of(job.submitted_ts)}",
        f"StartTime={fields.time_of(job.started_ts)} EndTime={fields.time_of(job.ended_ts)} Deadline={deadline}",
        f"Partition={job.queue}",
        f"NodeList={value('NodeList')}",
        *([f"BatchHost={value('BatchHost')}"] if fields.node_names(job) else []),
        f"NumNodes={value('NNodes')} NumCPUs={value('NCPUS')} NumTasks={job.pods} CPUs/Task={value('CPUsOfPod')}",
        f"TRES={fields.tres_of(job)}",
        f"MinMemoryNode={value('ReqMem')} TresPerNode={value('TresPerNode')}",
        f"TesseraId={job.job_id} GPUHours={fields.gpu_hours(job, now_ms)}",
    ]
    return "\n   ".join(lines) + "\n"


def _tasks_of(job: JobView) -> str:
    """The task's index, or of an array the indexes that are not queued yet."""
    if job.array is None:
        return str(job.task)
    left = job.array.left or job.array.tasks
    return f"{left}%{job.array.limit}" if job.array.limit else left


def config_lines(shard: str, kept_seconds: int) -> Sequence[str]:
    """The configuration, as far as clients ask for it: how long ended jobs are shown, and the largest array."""
    told = {
        "ClusterName": shard,
        "AccountingStorageType": "accounting_storage/tessera",
        "JobRequeue": "1",
        "MaxArraySize": str(TASKS_MAX),
        "MinJobAge": f"{kept_seconds} sec",
        "PreemptMode": "REQUEUE",
        "SelectType": "select/tessera",
    }
    return [f"{name:<23} = {text}" for name, text in told.items()]
