"""dask-jobqueue: a worker's job that ends, and one that is cancelled as the cluster is scaled down."""

import subprocess

from dask_jobqueue import SLURMCluster
from waiting import tell, until


def numbers(cluster: SLURMCluster) -> list[str]:
    return [job.job_id for job in cluster.workers.values() if getattr(job, "job_id", None)]


def is_in_state(number: str, state: str) -> bool:
    words = ["squeue", "-h", "-t", "all", "-j", number, "-o", "%T"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == state


made = {"queue": "default", "cores": 1, "memory": "1GB", "walltime": "00:05:00", "log_directory": "logs"}
with SLURMCluster(**made) as cluster:
    cluster.scale(jobs=1)
    (ended,) = until(lambda: numbers(cluster), "a worker's job is submitted")
    until(lambda: is_in_state(ended, "COMPLETED"), "it ends")
with SLURMCluster(**made, job_extra_directives=["--hold"]) as cluster:
    cluster.scale(jobs=1)
    (cancelled,) = until(lambda: numbers(cluster), "another worker's job is submitted")
    cluster.scale(0)
    until(lambda: is_in_state(cancelled, "CANCELLED"), "scaling down cancels it")
tell(ended, cancelled)
