"""Output of commands: a table of at most 80 columns, a wide one, JSON or YAML, all with the same data."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size

COLUMNS = 80
GAP = 2
SHORTEST = 6  # what a shrunk column keeps at least

Row = TypeVar("Row")


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """`shrinks` columns give way when a line would be too long; `wide` ones are shown in the wide table only."""

    title: str
    value: Callable[[Row], str]
    shrinks: bool = False
    right: bool = False
    wide: bool = False


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], *, wide: bool = False, gap: int = GAP) -> list[str]:
    """The lines of a table. Not wide, each is at most 80 columns, whatever the values are; `gap` blanks between two."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[column.title for column in shown], *([_flat(column.value(row)) for column in shown] for row in rows)]
    widths = [max(cell_len(line[at]) for line in cells) for at in range(len(shown))]
    if not wide:
        _shrink(widths, [column.shrinks for column in shown], gap)
    return [_line(shown, line, widths, gap) for line in cells]


def show(
    output: Output,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    as_of: int | None,
    note: str = "",
    *,
    gap: int = GAP,
) -> None:
    """Print rows as the output wants them, and the n up to which they hold."""
    if output in (Output.JSON, Output.YAML):
        show_value(output, {"items": [plain(row) for row in rows]}, as_of)
        return
    print("\n".join(table(columns, rows, wide=output is Output.WIDE, gap=gap)))
    said = ([] if as_of is None else [f"as of {as_of}"]) + ([note] if note else [])
    if said:
        print(", ".join(said))


def show_value(output: Output, value: dict[str, Any], as_of: int | None) -> None:
    """Print one value as JSON or YAML."""
    whole = value if as_of is None else {"as_of": as_of, **value}
    if output is Output.YAML:
        import yaml

        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(whole, indent=2, ensure_ascii=False))


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


def say(text: str) -> None:
    """To people, beside what a program reads."""
    print(text, file=sys.stderr)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _shrink(widths: list[int], shrinks: list[bool], gap: int) -> None:
    """Take from the widest column that may give, then from any, until the line fits."""

    def excess() -> int:
        return sum(widths) + gap * (len(widths) - 1) - COLUMNS

    for eligible in (shrinks, [True] * len(widths)):
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
