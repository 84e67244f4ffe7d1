"""parsl: a block that ends, and one that is cancelled, by the provider that parsl's executors use."""

import os

from parsl.jobs.states import JobState, JobStatus
from parsl.providers import SlurmProvider
from waiting import tell, until


def is_in_state(provider: SlurmProvider, number: str, state: JobState) -> bool:
    provider.resources[number]["status"] = JobStatus(JobState.PENDING)  # what `cancel` has assumed is asked anew
    return provider.status([number])[0].state == state


def made(options: str = "") -> SlurmProvider:
    provider = SlurmProvider(partition="default", exclusive=False, walltime="00:05:00", scheduler_options=options)
    provider.script_dir = os.getcwd()
    return provider


provider = made()
ended = provider.submit("true", 1)
until(lambda: is_in_state(provider, ended, JobState.COMPLETED), "parsl sees the end")
provider = made("#SBATCH --hold")
cancelled = provider.submit("true", 1)
assert provider.cancel([cancelled]) == [True]
until(lambda: is_in_state(provider, cancelled, JobState.CANCELLED), "parsl sees that it is cancelled")
tell(ended, cancelled)
