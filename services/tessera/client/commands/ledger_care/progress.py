"""A bar for what takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

LONG = 2_000  # messages from which on a progress bar is worth its lines


@contextmanager
def progress_of(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for what takes long; call what it gives once for each message."""
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=total < LONG, transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda: progress.advance(bar)
