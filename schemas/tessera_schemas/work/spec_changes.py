"""Fields of a job's spec that may get other values after its submit."""

from typing import Annotated

from pydantic import Field, model_validator

from tessera_schemas.base import JobName, Millis, Strict
from tessera_schemas.work.arrays import DEPENDENCIES_MAX, Dependency

TIME_LIMIT_MAX_SECONDS = 31_536_000


class SpecChanges(Strict):
    """
    New values of some fields of a spec, as the spec says them; None for what stays.

    `name` stands last: the state's canonical form takes defaults of its own entities off the ends of objects, and an
    empty `after` looks like one.
    """

    time_limit_seconds: Annotated[
        Annotated[int, Field(ge=0, le=TIME_LIMIT_MAX_SECONDS, strict=True)] | None,
        Field(description="Seconds after which a run fails; 0: never"),
    ] = None
    after: Annotated[
        Annotated[tuple[Dependency, ...], Field(max_length=DEPENDENCIES_MAX)] | None,
        Field(description="Conditions on other jobs, all of which must hold before the job starts; empty: none"),
    ] = None
    begin_ts: Annotated[Millis | None, Field(description="Earliest start; 0: none")] = None
    name: Annotated[JobName | None, Field(description="Name of the job for people")] = None

    @model_validator(mode="after")
    def _changes_something(self) -> "SpecChanges":
        if not self.given:
            raise ValueError("nothing is to change: say time_limit_seconds, after, begin_ts or name")
        return self

    @property
    def given(self) -> dict[str, object]:
        """The fields that get a value, with their values."""
        found = {name: getattr(self, name) for name in SpecChanges.model_fields}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def waiting_only(self) -> tuple[str, ...]:
        """The fields that change while a job waits, and not while it runs."""
        return tuple(name for name in self.given if name != "time_limit_seconds")
