"""simple_slurm: a job that ends, and one that is cancelled, as its `squeue` shows them."""

from simple_slurm import Slurm
from waiting import tell, until


def is_queued(slurm: Slurm, number: int) -> bool:
    slurm.squeue.update_squeue()
    return number in slurm.squeue.jobs


slurm = Slurm(job_name="simple", partition="default", output="simple_%j.out", time="00:05:00")
ended = slurm.sbatch("true", verbose=False)
until(lambda: not is_queued(slurm, ended), "simple_slurm sees the end")
slurm = Slurm(job_name="waits", begin="now+1hours", array=range(3))
waits = slurm.sbatch("true", verbose=False)
slurm.scancel.cancel_job(waits)
slurm = Slurm(job_name="waits", begin="now+1hours", parsable=True)
cancelled = slurm.sbatch("true", verbose=False)
until(lambda: is_queued(slurm, cancelled), "simple_slurm sees the job that waits")
slurm.scancel.cancel_job(cancelled)
until(lambda: not is_queued(slurm, cancelled), "simple_slurm sees that it is cancelled")
tell(ended, cancelled)
