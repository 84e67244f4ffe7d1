"""psij-python: a job that ends, one that is cancelled, and the list of one's jobs."""

from datetime import timedelta
from pathlib import Path

from psij import Job, JobAttributes, JobExecutor, JobSpec, JobState
from psij.executors.batch.slurm import SlurmExecutorConfig
from waiting import SECONDS, tell

config = SlurmExecutorConfig(work_directory=Path.cwd(), initial_queue_polling_delay=1, queue_polling_interval=1)
executor = JobExecutor.get_instance("slurm", config=config)


def made(**options: str) -> Job:
    attributes = JobAttributes(queue_name="default", custom_attributes={f"slurm.{k}": v for k, v in options.items()})
    job = Job(JobSpec(executable="/bin/true", attributes=attributes))
    executor.submit(job)
    return job


ended = made()
status = ended.wait(timedelta(seconds=SECONDS))
assert status is not None, "psij sees no end"
assert status.state is JobState.COMPLETED, status
cancelled = made(begin="now+1hours")
cancelled.cancel()
status = cancelled.wait(timedelta(seconds=SECONDS))
assert status is not None, "psij does not see that it is cancelled"
assert status.state is JobState.CANCELED, status
assert {ended.native_id, cancelled.native_id} <= set(executor.list())
tell(ended.native_id, cancelled.native_id)
