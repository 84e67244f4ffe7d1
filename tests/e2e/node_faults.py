"""What an operator and a program that saves its work do while nodes fail."""

from tessera.kernel.messaging.requests import Requester
from tessera_schemas import subjects
from tessera_schemas.commands import AnyOperatorCommand
from tessera_schemas.job import JobSpec, Role
from tests.e2e.live import Live


async def operate(live: Live, command: AnyOperatorCommand) -> None:
    requester = await Requester.open(live.bus, subjects.OPERATOR)
    answer = await requester.ask(subjects.control(live.platform.shard), command)
    assert answer is not None
    assert answer.accepted, answer


def saving(spec: JobSpec, every: float, notice: int) -> JobSpec:
    """The same job, whose program saves its work."""
    (role,) = spec.roles
    notes = role.template.annotations | {"tessera.io/simulate-checkpoint-seconds": str(every)}
    saver: Role = role.model_copy(update={"template": role.template.model_copy(update={"annotations": notes})})
    declared = {"checkpoint": {"interval_seconds": 60, "notice_seconds": notice}}
    return JobSpec.model_validate(spec.model_copy(update={"roles": (saver,)}).model_dump() | declared)
