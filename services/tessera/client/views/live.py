"""Output that changes in place on a terminal: a view that is shown again and again, and a bar for what takes long."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from tessera.client.views.rendering import STEERING, notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient

LONG = 2_000  # messages from which on a progress bar is worth its lines

EVERY_SECONDS = 1.0

ReadLines = Callable[[], Awaitable[list[str]]]


async def watch(read: ReadLines, every_seconds: float = EVERY_SECONDS) -> None:
    """Show it until Ctrl-C; while the views are away it says so once and goes on."""
    with suppress(asyncio.CancelledError):  # by which asyncio tells of Ctrl-C
        await (_show_in_place if sys.stdout.isatty() else _print_changes)(read, every_seconds)


async def _show_in_place(read: ReadLines, every_seconds: float) -> None:
    from rich.console import Console  # programs that read what is printed do without
    from rich.live import Live
    from rich.text import Text

    clock, console = SystemClock(), Console()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                lines = await read()
            except Transient as error:
                lines = [f"the views are away ({error}); trying again"]
            live.update(Text("\n".join(lines[: console.height]).translate(STEERING), no_wrap=True), refresh=True)
            await clock.sleep(every_seconds)


async def _print_changes(read: ReadLines, every_seconds: float) -> None:
    clock, last, away = SystemClock(), list[str](), False
    while True:
        try:
            lines = await read()
        except Transient as error:
            if not away:
                notify(f"the views are away ({error}); trying again")
            away = True
        else:
            away = False
            if lines != last:
                print("\n".join(["", *lines] if last else lines), flush=True)
            last = lines
        await clock.sleep(every_seconds)


@contextmanager
def progress_of(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for what takes long; call what it gives once for each message."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=total < LONG, transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda: progress.advance(bar)
