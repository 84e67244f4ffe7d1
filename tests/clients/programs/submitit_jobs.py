"""submitit: a job, an array, and a job that is cancelled while it is held."""

import time

import submitit
from waiting import tell, until


def is_in_state(job: submitit.Job, state: str) -> bool:
    return job.watcher.get_state(job.job_id, mode="force").startswith(state)


executor = submitit.AutoExecutor(folder="logs/%j", cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_partition="default", gpus_per_node=1, cpus_per_task=1, mem_gb=1)
ended = executor.submit(time.sleep, 1)
until(lambda: is_in_state(ended, "COMPLETED"), "submitit sees the end")
assert ended.done(force_check=True)
tasks = executor.map_array(time.sleep, [1, 1, 1])
assert [task.job_id.partition("_")[2] for task in tasks] == ["0", "1", "2"]
until(lambda: all(is_in_state(task, "COMPLETED") for task in tasks), "submitit sees the end of each task")
executor.update_parameters(slurm_additional_parameters={"hold": True})
cancelled = executor.submit(time.sleep, 1)
cancelled.cancel()
until(lambda: is_in_state(cancelled, "CANCELLED"), "submitit sees that it is cancelled")
tell(ended.job_id, cancelled.job_id)
