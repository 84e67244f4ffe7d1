"""What the ledger would have against a submit: a dry run is answered with it, and a submit that repeats a key. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.engine.queueing.entry import entry_faults, key_conflict
from tessera.gateway.entrance.bodies import written
from tessera_schemas.commands import TENANT_COMMAND, SubmitJob, SubmitTemplate
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.reasons import Reason


def find_ledger_faults(
    state: State, known: Job | EndedJob | None, tenant: str, command: Mapping[str, Any], job: str
) -> list[Reason]:
    """
    All that the ledger would have against a submit that admission takes; of a template what its key says alone.

    `known` is the job that has the key.
    """
    if known is not None:
        return [] if known.spec_hash == digest_of(command) else [key_conflict(command["key"])]
    read = TENANT_COMMAND.validate_json(written(command))
    if not isinstance(read, SubmitJob):
        return []
    return entry_faults(
        state, JobAdmitted(kind="job_admitted", job_id=job, tenant=tenant, key=read.key, spec=read.spec)
    )


def digest_of(command: Mapping[str, Any]) -> str:
    """Hash of what an accepted submit asked for, as the ledger has it."""
    return cast(SubmitJob | SubmitTemplate, TENANT_COMMAND.validate_json(written(command))).digest()
