"""Steps of a run: what a script started in its pods by `srun`, as the first pod told of them at the run's end."""

from typing import Annotated, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from tessera_schemas.base import Count, Lenient, Strict, printable

STEPS_AT_EACH_END = 100
"""So many steps from the first on, and so many up to the last, are told of one by one."""
STEP_NAME_MAX = 32

StepName = Annotated[str, StringConstraints(max_length=STEP_NAME_MAX), AfterValidator(printable)]
Small = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
ExitCode = Annotated[int, Field(ge=0, le=255, strict=True)]


class RunStep(NamedTuple):
    """One step; `started` is in seconds since the Unix epoch, `exit_code` the highest one of its tasks."""

    number: Small
    name: StepName
    tasks: Small
    started: Count
    seconds: Small
    exit_code: ExitCode


class PublicRunSteps(Lenient):
    """The steps of one run, in order: the first and the last ones, so that fewer may be here than there were."""

    count: Annotated[int, Field(ge=0, description="Number of all steps of the run")] = 0
    steps: tuple[RunStep, ...] = ()
    unread: Annotated[str, Field(description="Why what the pod told of its steps could not be read")] = ""


class RunSteps(PublicRunSteps, Strict):
    """The same as the binder reports it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    count: Small = 0
    steps: Annotated[tuple[RunStep, ...], Field(max_length=2 * STEPS_AT_EACH_END)] = ()
    unread: Annotated[str, StringConstraints(max_length=200), AfterValidator(printable)] = ""
