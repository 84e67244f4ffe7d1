"""`templates`: what a user may submit by name, and what each parameter may be."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import Column, Output, plain, show, show_value
from tessera_schemas.work.templates import JobTemplate, Parameter

ALL: list[Column[JobTemplate]] = [
    Column("TEMPLATE", lambda found: found.name),
    Column("PARAMETERS", lambda found: " ".join(brief(parameter) for parameter in found.parameters), shrinks=True),
    Column("ALSO", lambda found: " ".join(found.overrides), wide=True),
    Column("DESCRIPTION", lambda found: found.description, shrinks=True),
]
ONE: list[Column[Parameter]] = [
    Column("PARAMETER", lambda found: found.name),
    Column("TYPE", lambda found: found.type),
    Column("DEFAULT", lambda found: "(required)" if found.default is None else str(found.default), shrinks=True),
    Column("MAY BE", lambda found: may_be(found), shrinks=True),
    Column("DESCRIPTION", lambda found: found.description, shrinks=True),
]


@command
async def templates(
    at: AccessOptions,
    template: Annotated[str | None, typer.Argument(help="Only this one, with all of its parameters")] = None,
    output: Format = Output.TABLE,
) -> None:
    """List the templates that `tessera submit --template` takes, with their parameters."""
    views = at.views()
    known, as_of = {found.name: found for found in await views.templates()}, await views.as_of()
    if template is None:
        show(output, ALL, [known[name] for name in sorted(known)], as_of)
        return
    found = known.get(template)
    if found is None:
        raise Failure(Exit.NOT_FOUND, f"template {template}: there is none; there are {', '.join(known) or 'none'}")
    if output.for_programs:
        show_value(output, plain(found), as_of)
    else:
        beside = f"beside them: {', '.join(found.overrides)}" if found.overrides else ""
        show(output, ONE, found.parameters, as_of, beside)


def brief(parameter: Parameter) -> str:
    """`lr=0.1`, or `lr` when it has to be said."""
    return parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}"


def may_be(parameter: Parameter) -> str:
    """Bounds or values of a parameter, in a few words."""
    if parameter.type == "choice":
        return " | ".join(parameter.values)
    if parameter.type == "string":
        return f"up to {parameter.length_max} characters"
    least = "" if parameter.min is None else str(parameter.min)
    most = "" if parameter.max is None else str(parameter.max)
    return f"{least}..{most}" if least or most else "a whole number"
