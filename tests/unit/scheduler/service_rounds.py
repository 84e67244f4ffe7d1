"""Services in rounds: submitted, scaled, and their replicas as the state has them."""

from typing import Any

from tessera_schemas.base import job_id
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.shard.records import ScaleRequested
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import SHARD, admitted, job_spec, role, run_absent
from tests.rounds import Rounds


def submit(rounds: Rounds, name: str = "chat", gpus: int = 2, **size: int) -> str:
    """A service of replicas with so many GPUs each; its job id."""
    spec = job_spec(role(gpus=gpus), name=name, service=ServiceSize(**size), array=JobArray(tasks=SERVICE_TASKS))
    rounds.commit(admitted(name, spec))
    rounds.settle()
    return job_id(SHARD, "lab", name)


def scale(rounds: Rounds, service: str, replicas: int, tenant: str = "lab") -> None:
    rounds.commit(ScaleRequested(kind="scale_requested", job_id=service, replicas=replicas, tenant=tenant))
    for _ in range(3):
        rounds.settle()
        let_go(rounds)


def let_go(rounds: Rounds) -> None:
    """What is being stopped is absent."""
    stopping = [run.run_id for run in rounds.state.runs.values() if run.stopping]
    for run_id in stopping:
        rounds.commit(run_absent(run_id))


def replicas(rounds: Rounds, service: str) -> dict[int, str]:
    """Phase of each replica by its index; `parked` for one that the service does not want."""
    tasks = (job for job in rounds.state.jobs.values() if job.task_of == service)
    return {job.task: "parked" if job.held else job.phase.value for job in tasks}


def replica(rounds: Rounds, service: str, task: int) -> Any:
    return next(job for job in rounds.state.jobs.values() if (job.task_of, job.task) == (service, task))


def records(rounds: Rounds, kind: str) -> list[Any]:
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    return [record for message in read for record in message.records if record.kind == kind]
