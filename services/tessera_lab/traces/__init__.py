"""
Traces of real clusters: small readers that refuse what they do not understand.

No trace is part of the project. Each is looked for below `$TESSERA_DATA`, then below `../shared/data`; what is missing
is named together with where to get it, and a malformed row with its file, line and field.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

from tessera.kernel.errors import StartupError
from tessera.kernel.process.files import read_text

DATA_VARIABLE = "TESSERA_DATA"
DEFAULT_DATA = Path("../shared/data")

T = TypeVar("T")


class MissingTrace(StartupError):
    """A trace is not on this machine; the text says where it was looked for and where to get it."""


class MalformedRow(StartupError):
    """A row that the reader does not understand; the text names file, line and field."""

    def __init__(self, path: Path, line: int, field: str, what: str) -> None:
        super().__init__(f"{path}, line {line}, {field}: {what}")
        self.path, self.line, self.field = path, line, field


def find_data(file: str | Path, source: str, environment: Mapping[str, str], directory: Path) -> Path:
    """
    The path of a trace file named relative to the data directory.

    Args: `source`, where to get it, for whoever has not; `directory`, the one we work in.
    """
    named = environment.get(DATA_VARIABLE)
    looked = [*([Path(named)] if named else []), directory / DEFAULT_DATA]
    for data in looked:
        if (data / file).exists():
            return data / file
    places = " and ".join(str(data) for data in looked)
    raise MissingTrace(f"{file} is not below {places}; get it from {source} and set {DATA_VARIABLE}")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table, its fields read one by one."""

    path: Path
    line: int
    values: Mapping[str, str]

    def whole(self, field: str, low: int = 0, high: int = 2**40) -> int:
        """A whole number within bounds."""
        text = self.text(field)
        try:
            number = int(text)
        except ValueError as error:
            raise self.malformed(field, f"{text!r} is no whole number") from error
        if not low <= number <= high:
            raise self.malformed(field, f"{number} is not between {low} and {high}")
        return number

    def text(self, field: str) -> str:
        value = self.values.get(field)
        if value is None:
            raise self.malformed(field, "the row ends before it")
        return value.strip()

    def malformed(self, field: str, what: str) -> MalformedRow:
        return MalformedRow(self.path, self.line, field, what)


def read_table(path: Path, needed: Sequence[str], make: Callable[[TableRow], T]) -> Iterator[T]:
    """
    One thing per row of a CSV file with a heading; `needed` are the columns that must be there.

    Raises UnreadableFile for what is no text, MalformedRow for what is no table, or one without a row.
    """
    rows = csv.DictReader(StringIO(read_text(path), newline=""))
    try:
        missing = [column for column in needed if column not in (rows.fieldnames or ())]
        if missing:
            raise MalformedRow(path, 1, missing[0], f"no such column; needed are {', '.join(needed)}")
        for values in rows:
            row = TableRow(path, rows.line_num, values)
            if None in values:
                raise row.malformed("(end)", "more fields than the heading has")
            yield make(row)
    except csv.Error as error:
        raise MalformedRow(path, rows.line_num, "(row)", f"is no row of a table ({error})") from error
    if rows.line_num <= 1:
        raise MalformedRow(path, 2, needed[0], "there is no row below the heading")
