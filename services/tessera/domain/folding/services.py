"""
Guaranteed minimums of services: which replicas no plan stops; and which of their revisions replicas have. Pure.

A service is what makes replicas, each a job of its own. Of those that hold devices and are not being stopped the first
`min_replicas` are kept, the longest running first: so whatever a plan takes of the others, that many are left. A
replica that waits while fewer hold devices would be one of them, and does not borrow.
"""

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import Rollout, TaskArray
from tessera_schemas.ledger import Requeued
from tessera_schemas.shard.records import RolloutRequested
from tessera_schemas.work.run_ends import Word, end_of


def mark_minimums(state: State) -> None:
    """Mark anew which replicas are in the minimum, of each service of which one came, went, started or is to stop."""
    for service in tuple(state.changed_services):
        jobs = state.jobs.found(state.services.get(service) or ())
        least, holding = minimum_of(jobs), holding_replicas(state, jobs)
        kept = {job.job_id for job, _ in holding[:least]}
        others = {job.job_id for job, _ in holding[least:]} if len(holding) >= least else set[str]()
        for job in jobs:
            # One that waits is in the minimum while that is not full; how many wait does not matter, since the first
            # to start moves the others out.
            waits = job.job_id not in kept and job.job_id not in others
            inside = job.job_id in kept or (waits and len(holding) < least)
            if job.in_minimum is not inside:
                state.put_job(replace(job, in_minimum=inside))
    state.changed_services.clear()


def minimum_of(replicas: list[Job]) -> int:
    """Guaranteed number of replicas: the highest that live ones were given."""
    adopted = (job.adopted.service.min_replicas for job in replicas if job.adopted and job.adopted.service)
    return max(*adopted, *(job.guaranteed or 0 for job in replicas), 0, 0)


def holding_replicas(state: State, replicas: list[Job]) -> list[tuple[Job, Run]]:
    """Replicas that hold devices and are not being stopped, those first that have run longest."""
    found = ((job, state.runs.get(job.run_id)) for job in replicas)
    holding = [(job, run) for job, run in found if run is not None and not run.stopping]
    return sorted(holding, key=lambda each: (not each[1].started, each[1].started_ts, each[1].run_id))


def replicas_by_service(state: State) -> dict[str, list[Job]]:
    """Live replicas of each service by its id; also of those that were submitted and have none now."""
    replicas = {service: state.jobs.found(jobs) for service, jobs in state.services.items()}
    # A service of no replicas has none by which it would be known.
    for job in state.jobs.found(state.relations.families.values()):
        if job.array is not None and job.array.is_service:
            replicas.setdefault(job.job_id, [])
    return replicas


def count_below_minimum(state: State) -> int:
    """
    Number of services of which fewer replicas run than are guaranteed.

    Of users' objects those replicas are wanted that are there, so that one that its owner scaled down is not counted.
    """
    return sum(_is_below(state, service, jobs) for service, jobs in replicas_by_service(state).items())


def _is_below(state: State, service: str, replicas: list[Job]) -> bool:
    whole = state.jobs.get(service)
    array = None if whole is None else whole.array
    if array is not None and array.closed is not None:
        return False
    least, wanted = (minimum_of(replicas), len(replicas)) if array is None else (array.least, array.wanted)
    return sum(run.started for _, run in holding_replicas(state, replicas)) < min(least, wanted)


def describe_minimum(state: State, job: Job) -> str:
    """Words for the minimum that a replica is in: `Deployment/chat (2 guaranteed, 4 running)`; "" outside of one."""
    if not job.in_minimum:
        return ""
    replicas = state.jobs.found(state.services.get(job.service) or ())
    running = sum(run.started for _, run in holding_replicas(state, replicas))
    return f"{job.service_name} ({minimum_of(replicas)} guaranteed, {running} running)"


def spec_of_next(service: Job) -> tuple[int, ...]:
    """Place of the programs of the next replica that a service starts: a rollout that stopped gives those before."""
    rollout = None if service.array is None else service.array.rollout
    return service.spec_at if rollout is None or rollout.stopped is None else rollout.before


def begin_rollout(service: Job, array: TaskArray, asked: RolloutRequested, at: tuple[int, int]) -> Job:
    """
    The service with its next revision, whose programs stand `at` a fact, or are those before.

    What a rollout falls back to is what the last one that was done gave: programs that have not proved themselves are
    none. An undo may be undone.
    """
    last = array.rollout
    # An undo leaves behind what it came from, proved or not: it is the only way back to that.
    undone = asked.undo and last is not None
    proved = service.spec_at if last is None or last.done or undone else last.before
    spec_at = last.before if undone and last is not None else at
    rollout = Rollout(
        array.revision + 1, asked.max_surge, asked.max_unavailable, asked.min_ready_seconds, before=proved
    )
    return replace(service, spec_at=spec_at, array=replace(array, rollout=rollout))


def follow_rollout(state: State, replica: Job, record: Requeued | None = None) -> None:
    """
    Count the failures in a row of the revision that a service rolls out.

    A run that failed, or could not start, counts; that an older replica makes way ends the row.
    """
    service = state.jobs.get(replica.task_of)
    array = None if service is None else service.array
    if service is None or array is None or array.rollout is None or not array.rollout.goes_on:
        return
    # In a row, and not in all: in a service of a hundred replicas three may fail by chance before the last is replaced.
    is_new, failures = replica.spec_at == service.spec_at, array.rollout.failures
    if record is None:
        failures = failures if is_new else 0
    elif is_new and fails_rollout(record):
        failures += 1
    if failures != array.rollout.failures:
        rollout = replace(array.rollout, failures=failures)
        state.put_job(replace(service, array=replace(array, rollout=rollout)))


def fails_rollout(record: Requeued) -> bool:
    """Whether the end of a run speaks against its programs or its image; a lost node, or a stop by others, does not."""
    end = end_of(record.reason.code)
    return end.spends or end.word is Word.UNSTARTED


def renew(state: State, replica: Job) -> Job:
    """The replica that is let go of, with the programs of its service; what still stops keeps its own until then."""
    service = state.jobs.get(replica.task_of)
    # The binder makes and stops the pods of a run by one template: other programs under a run that stops would be taken
    # for another run's.
    if service is None or replica.phase is not Phase.QUEUED:
        return replica
    return replace(replica, spec_at=spec_of_next(service))
