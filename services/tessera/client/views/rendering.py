"""
Output of commands: a table as wide as the terminal, a wide one, JSON, YAML, names or a path, of the same data.

Moments are read in the local zone, by TZ, which is named once beside them.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TextIO, TypeVar

from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size
from typer import BadParameter

from tessera.client.views.json_path import check_template, fill_template

WINTER, SUMMER = 1_767_225_600, 1_782_864_000
"""Seconds since the epoch half a year apart: a zone with summer time has two names."""

COLUMNS = 80
"""Of prose, and of tables on a terminal that does not tell its width."""
NARROWEST = 40
GAP = 2
SHORTEST = 6  # what a shrunk column keeps at least

NAMES = ("job_id", "id", "name", "queue", "pool", "n")

ShownRow = TypeVar("ShownRow")


@dataclass(frozen=True, slots=True)
class Output:
    """A format of output: its kind, and of the kind `jsonpath` the template."""

    kind: str
    template: str = ""

    TABLE: ClassVar["Output"]
    WIDE: ClassVar["Output"]
    JSON: ClassVar["Output"]
    YAML: ClassVar["Output"]
    NAME: ClassVar["Output"]

    @property
    def for_programs(self) -> bool:
        """Whether all data are wanted, and no table."""
        return self.kind not in ("table", "wide")

    @classmethod
    def parse(cls, text: "str | Output") -> "Output":
        """Read a value of `-o`. Raises typer.BadParameter."""
        if isinstance(text, Output):
            return text
        kind, _, template = text.partition("=")
        if kind == "jsonpath" and template:
            try:
                check_template(template)
            except ValueError as error:
                raise BadParameter(str(error)) from error
            return cls(kind, template)
        if text not in KINDS:
            raise BadParameter(f"{text!r} is none of {', '.join(KINDS)} and jsonpath={{…}}")
        return KINDS[text]


KINDS: Mapping[str, Output] = {kind: Output(kind) for kind in ("table", "wide", "json", "yaml", "name")}
for _kind, _output in KINDS.items():
    setattr(Output, _kind.upper(), _output)


@dataclass(frozen=True, slots=True)
class Column(Generic[ShownRow]):
    """`shrinks` columns give way when a line would be too long; `wide` ones are shown in the wide table only."""

    title: str
    value: Callable[[ShownRow], str]
    shrinks: bool = False
    right: bool = False
    wide: bool = False


def table(
    columns: Sequence[Column[ShownRow]],
    rows: Sequence[ShownRow],
    *,
    wide: bool = False,
    gap: int = GAP,
    ruled: bool = False,
) -> list[str]:
    """
    The lines of a table, with `gap` blanks between two cells. Unless it is wide, each is at most as long as the
    terminal is wide, whatever the values are; what goes into a pipe or a file is not cut. One that is `ruled` has
    dashes below its titles.
    """
    shown = [column for column in columns if wide or not column.wide]
    cells = [[column.title for column in shown], *([flat(column.value(row)) for column in shown] for row in rows)]
    widths = [max(cell_len(line[at]) for line in cells) for at in range(len(shown))]
    if not wide:
        _shrink(widths, shown, gap, columns_of_output())
    if ruled:
        cells.insert(1, ["-" * width for width in widths])
    return [_line(shown, line, widths, gap) for line in cells]


def show_bare(columns: Sequence[Column[ShownRow]], rows: Sequence[ShownRow], *, titles: bool, ending: bool) -> None:
    """Print rows with | between their fields, and behind the last where `ending`."""
    lines = [[column.title for column in columns]] if titles else []
    for line in lines + [[column.value(row).strip() for column in columns] for row in rows]:
        print("|".join(line) + ("|" if ending else ""))


def show(
    output: Output,
    columns: Sequence[Column[ShownRow]],
    rows: Sequence[ShownRow],
    as_of: int | None,
    note: str = "",
    *,
    gap: int = GAP,
    titles: bool = True,
    ruled: bool = False,
) -> None:
    """Print rows as the output wants them, and the n up to which they hold."""
    if output.for_programs:
        show_value(output, {"items": [plain(row) for row in rows]}, as_of)
        return
    for line in table(columns, rows, wide=output is Output.WIDE, gap=gap, ruled=ruled and titles)[0 if titles else 1 :]:
        print(line)
    notes = ([] if as_of is None else [f"as of {as_of}"]) + ([note] if note else [])
    if notes:
        print(", ".join(notes))


def show_value(output: Output, value: dict[str, Any], as_of: int | None) -> None:
    """Print one value as JSON or YAML, its names, or what a path finds in it."""
    whole = value if as_of is None else {"as_of": as_of, **value}
    if output.kind == "yaml":
        import yaml

        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")
    elif output.kind == "name":
        print("\n".join(_name_of(item) for item in value.get("items", [value])))
    elif output.kind == "jsonpath":
        print(fill_template(output.template, whole))
    else:
        print(json.dumps(whole, indent=2, ensure_ascii=False))


def _name_of(item: Mapping[str, Any]) -> str:
    """Key by which commands name a thing: a job by its id."""
    return str(next((item[field] for field in NAMES if item.get(field)), ""))


def plain(value: Any) -> Any:
    """A model, a dataclass or what is made of them, as JSON would hold it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return value


class PrintableStream:
    """
    A text stream of which no character steers a terminal, whoever wrote it: line ends and tabs aside, control
    characters and those that turn the direction of writing become their `\\u` escapes, which JSON reads, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # by this name rich finds the terminal on which it draws

    def write(self, text: str) -> int:
        """Write the text with its escapes; returns the count of characters that were given."""
        self.rich_proxied_file.write(text.translate(STEERING))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


_CODES = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F))
STEERING = {code: f"\\u{code:04x}" for code in (*_CODES, *range(0x2066, 0x206A))}


def notify(text: str) -> None:
    """Write a line for people to stderr; programs read stdout."""
    print(text, file=sys.stderr)


def flat(text: str) -> str:
    """On one line and without what would steer a terminal."""
    return " ".join(text.split()).translate(STEERING)


def columns_of_output() -> int:
    """Columns of the terminal, or those that COLUMNS names; without bound where output goes elsewhere."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return max(shutil.get_terminal_size((COLUMNS, 24)).columns, NARROWEST)
    return sys.maxsize


def _shrink(widths: list[int], shown: Sequence[Column[Any]], gap: int, columns: int) -> None:
    """Take from the widest column that may give, then from any text, then from any number, until the line fits."""

    def excess() -> int:
        return sum(widths) + gap * (len(widths) - 1) - columns

    eligibles = [column.shrinks for column in shown], [not column.right for column in shown], [True for _ in shown]
    for eligible in eligibles:
        while excess() > 0:
            open_columns = [at for at, may in enumerate(eligible) if may and widths[at] > SHORTEST]
            if not open_columns:
                break
            widths[max(open_columns, key=lambda at: (widths[at], at))] -= 1


def _line(columns: Sequence[Column[Any]], cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        if cell_len(cell) > width:
            cell = set_cell_size(cell, width - 1) + "…"
        pad = " " * (width - cell_len(cell))
        parts.append(pad + cell if column.right else cell + pad)
    return (" " * gap).join(parts).rstrip()


def local_time(ts: int) -> datetime:
    """Milliseconds since the epoch as a time in the local zone."""
    return datetime.fromtimestamp(ts / 1000, UTC).astimezone()


def local_of(stamp: str) -> datetime:
    """A time of RFC 3339, such as an event's, in the local zone."""
    return datetime.fromisoformat(stamp).astimezone()


def zone_name() -> str:
    """The local zone's name, such as `UTC` or `CET/CEST`."""
    names = (local_time(1000 * seconds).tzname() or "local" for seconds in (WINTER, SUMMER))
    return "/".join(dict.fromkeys(names))
