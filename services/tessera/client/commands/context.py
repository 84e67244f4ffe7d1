"""Options that all commands share, and how an error becomes one sentence and an exit code."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from tessera.client.connect.locating import find
from tessera.client.connect.where import Where
from tessera.client.outcomes import EXPECTED, Exit, Refused, exit_of
from tessera.client.views.rendering import Output, PrintableStream, notify
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.text.quantities import QuantityError, seconds

if TYPE_CHECKING:
    from tessera.client.connect.shard_views import ShardViews

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Directory of a local platform (else TESSERA_HOME, .tessera)", show_default=False),
]
InShard = Annotated[
    str | None,
    typer.Option("--shard", help="Which shard (else TESSERA_SHARD, or the first there is)", show_default=False),
]
InContext = Annotated[
    str | None,
    typer.Option("--context", help="A login of `tessera context list` (else the one in use)", show_default=False),
]
As = Annotated[str | None, typer.Option("--as", help="Identity to use: a tenant or `operator`", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Say what it would do, and do not ask")]
Format = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        parser=Output.parse,
        metavar="FORMAT",
        help="table, wide, json, yaml, name or jsonpath={…}",
        show_default=False,
    ),
]


def ago(*names: str, says: str) -> Any:
    """Option whose value is a span of time until now, in whole seconds, written `90s`, `2h` or `7d`."""
    return typer.Option(*names, parser=_seconds, metavar="TIME", help=says, show_default=False)


def _seconds(text: str | int) -> int:
    """Raises typer.BadParameter."""
    try:
        return seconds(text)
    except QuantityError as error:
        raise typer.BadParameter(str(error)) from error


NOT_FOUND_SECONDS = 1.0
"""How long lists may take to hold what was sent before "there is none" is doubted."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """The shard that a command is about, as its options name it."""

    home: Home = None
    shard: InShard = None
    context: InContext = None

    def find(self) -> Where:
        """Raises Failure when nothing says where the shard is, StartupError for wrong settings."""
        return find(self.home, shard=self.shard, context=self.context)


@dataclass(frozen=True, slots=True)
class AccessOptions(ShardOptions):
    """The shard that a command is about, and the identity that asks."""

    identity: As = None

    def views(self) -> "ShardViews":
        """The views as far as whoever asks may see them. Raises Failure."""
        from tessera.client.connect.connecting import views_of  # who only asks for help does without

        return views_of(self.find(), self.identity)


ExitStatus = Exit | int | None


def command(work: Callable[..., ExitStatus | Coroutine[Any, Any, ExitStatus]]) -> Callable[..., None]:
    """
    Make a command of the command line out of a function, asynchronous or not, that returns an exit code or nothing.

    A parameter whose type is a dataclass, such as `at: AccessOptions`, stands for one option per field.
    """
    declared = inspect.signature(work).parameters
    groups: dict[str, Any] = {
        name: found.annotation for name, found in declared.items() if is_dataclass(found.annotation)
    }
    options = [found.replace(kind=found.KEYWORD_ONLY) for name, found in declared.items() if name not in groups]
    for group in groups.values():
        options += [_option_of(field) for field in fields(group)]

    @wraps(work)
    def run(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        out, err = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
        with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
            code = _carry_out(lambda: work(**given, **made))
        if code == Exit.NOT_FOUND:
            _tell_what_lists_lack(next((at for at in made.values() if isinstance(at, AccessOptions)), None))
        if code:
            raise typer.Exit(code)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _option_of(field: "Field[Any]") -> inspect.Parameter:
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)


def _carry_out(work: Callable[[], ExitStatus | Coroutine[Any, Any, ExitStatus]]) -> ExitStatus:
    """The exit code of a command; expected errors become one sentence on stderr."""
    try:
        result = work()
        code = asyncio.run(result) if inspect.iscoroutine(result) else result
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read what it wanted; Python would complain once more at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refused as refused:
        for reason in refused.reasons:
            notify(f"refused: {reason.sentence()}")
        return Exit.REFUSED
    except EXPECTED as error:
        notify(f"error: {error}")
        return exit_of(error)
    except OSError as error:  # the machine's answer about a file, a directory or a disk, none about our code
        if error.errno is None:
            raise  # Python's own, as a time-out is
        notify(f"error: {_about(error)}{error.strerror or error}; choose another place, or correct that one")
        return Exit.UNAVAILABLE
    return code  # type: ignore[return-value]  # a coroutine was run


def _tell_what_lists_lack(at: AccessOptions | None) -> None:
    """A note where "there is none" was read from lists that lack something: what was sent may be there all the same."""
    from tessera.client.connect.shard_status import why_views_lack  # those that find what they look for do without

    try:
        why = "" if at is None else asyncio.run(why_views_lack(at.find(), NOT_FOUND_SECONDS))
    except EXPECTED:
        return  # the error that was told is the answer
    if why:
        notify(f"note: it may be there all the same: {why}; see `tessera status`")


def _about(error: OSError) -> str:
    return f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""


def operators_views(at: ShardOptions) -> "tuple[Where, ShardViews]":
    """The shard, and its views with the configuration, read as the operator. Raises Failure."""
    from tessera.client.connect.connecting import views_of

    where = at.find()
    return where, views_of(where, OPERATOR)
