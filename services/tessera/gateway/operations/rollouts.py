"""
What a rollout of a service is to change, read from what a client sends: a whole spec, an image, or fields of programs.

Only programs change. All else of a spec that is sent has to be as it is, field by field; what it leaves out stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, model_validator

from tessera.domain.entities import Job
from tessera.engine.queueing.updates import rollout_faults
from tessera.gateway.entrance.problems import all_of
from tessera_schemas.base import Json, Name, Positive
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.pod_template import Image
from tessera_schemas.work.short_form import ShortFormError, full_job
from tessera_schemas.work.spec_changes import PROGRAM_FIELDS, ROLES_MAX, Program, RolloutPace, RolloutWish

WAY_OUT = f"a rollout changes {', '.join(PROGRAM_FIELDS)}; for another of these submit a service beside it"
REASONS_MAX = 16


class RolloutBody(RolloutPace):
    """
    What a service's replicas are to run: its whole `spec` with another program, an `image`, or fields of `programs`.

    All else of a spec that is sent has to be as it is; what is left out of it stays.
    """

    spec: Annotated[dict[str, Any] | None, Field(description="The service's spec, of which programs differ")] = None
    image: Annotated[Image | None, Field(description="Image of each role")] = None
    programs: Annotated[
        dict[Name, dict[str, JsonValue]],
        Field(max_length=ROLES_MAX, description="By role: image, command, args, env, working_dir; others stay"),
    ] = Field(default_factory=dict)
    undo: Annotated[bool, Field(description="Whether to go back to the programs before the present ones")] = False
    revision: Annotated[
        Positive | None, Field(description="Revision that the service has; refused where it has another")
    ] = None

    @model_validator(mode="after")
    def _asks_for_one(self) -> Self:
        if self.undo is bool(self.programs or self.image or self.spec):
            raise ValueError("say spec, image or programs, or undo alone")
        return self


def programs_now(spec: JobSpec) -> dict[str, Json]:
    """The programs of a spec's roles."""
    return {role.name: Program.made_of(role.template).model_dump(mode="json") for role in spec.roles}


def read_wish(body: RolloutBody, spec: JobSpec | None, revision: int) -> Json:
    """
    The wish that a body says, in the contract's form; `spec` is the service's own, None for an undo.

    Raises Refusal for quantities of a spec that are none, and where more than programs would change.
    """
    wish: Json = {"revision": body.revision or revision, "undo": body.undo, **body.pace}
    if spec is None:
        return wish
    programs = programs_now(spec)
    if body.spec is not None:
        programs |= _programs_in(_read_spec(body.spec, spec))
    if body.image is not None:
        programs = {name: program | {"image": body.image} for name, program in programs.items()}
    changed = {name: programs.get(name, {}) | fields for name, fields in body.programs.items()}
    return wish | {"programs": programs | changed}


def _read_spec(sent: Json, spec: JobSpec) -> Json:
    """The spec that was sent, in full form. Raises Refusal for each field that is another and no program's."""
    try:
        full = full_job(sent)
    except ShortFormError as error:
        raise all_of(error.reasons("spec.")) from None
    paths = list(_others(_without_programs(full), spec.model_dump(mode="json")))
    if paths:
        raise all_of(
            [Reason(code=Code.INVALID_FIELD, field=path[:300], detail=WAY_OUT) for path in paths[:REASONS_MAX]]
        )
    return full


def _programs_in(full: Json) -> dict[str, Json]:
    """Programs of the roles of a spec as it was sent; a field that it leaves out is empty."""
    roles = [role for role in full.get("roles") or () if isinstance(role, Mapping)]
    templates = {str(role.get("name")): role.get("template") for role in roles}
    return {
        name: {field: template[field] for field in PROGRAM_FIELDS if field in template}
        for name, template in templates.items()
        if isinstance(template, Mapping)
    }


def _without_programs(full: Json) -> Json:
    roles = full.get("roles")
    if not isinstance(roles, Sequence):
        return full
    return full | {"roles": [_without_program(role) for role in roles]}


def _without_program(role: Any) -> Any:
    template = role.get("template") if isinstance(role, Mapping) else None
    if not isinstance(template, Mapping):
        return role
    return {**role, "template": {name: value for name, value in template.items() if name not in PROGRAM_FIELDS}}


def _others(given: Any, own: Any, path: str = "") -> Iterator[str]:
    """Paths at which what is given is not what is there."""
    if isinstance(given, Mapping) and isinstance(own, Mapping):
        for name, value in given.items():
            yield from _others(value, own.get(name), f"{path}.{name}" if path else name)
    elif isinstance(given, Sequence) and isinstance(own, Sequence) and not isinstance(given, str):
        if len(given) != len(own):
            yield path
            return
        for index, (value, there) in enumerate(zip(given, own, strict=True)):
            yield from _others(value, there, f"{path}[{index}]")
    elif given != own:
        yield path


def program_faults(known: Job, wish: RolloutWish, spec: JobSpec) -> list[Reason]:
    """All reasons against these programs: a role that is not there, no command to launch, or nothing new."""
    against = rollout_faults(known, wish.revision, wish.undo, wish.programs) + _launcher_faults(wish, spec)
    rollout = None if known.array is None else known.array.rollout
    # After a rollout that stopped, the same may be tried again: its image may be there by now.
    may_repeat = rollout is not None and rollout.stopped is not None
    same = {name: program.model_dump(mode="json") for name, program in wish.programs.items()} == programs_now(spec)
    if same and not may_repeat and not against:
        against = [Reason(code=Code.INVALID_FIELD, field="programs", detail="its replicas have these programs")]
    return against


def _launcher_faults(wish: RolloutWish, spec: JobSpec) -> list[Reason]:
    """Reasons against programs without a command, which a launcher is to start."""
    before = {role.name for role in spec.roles if role.template.command}
    empty = [name for name, program in wish.programs.items() if name in before and not program.command]
    detail = f"launcher {spec.launcher} starts the command; say one"
    needs = spec.launcher not in (None, "plain")
    return [Reason(code=Code.INVALID_FIELD, field=f"programs.{each}.command", detail=detail) for each in empty if needs]
