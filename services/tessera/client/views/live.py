"""A view that is shown again and again: in place on a terminal, else once more whenever it has changed."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient

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
            live.update(Text("\n".join(lines[: console.height]), no_wrap=True), refresh=True)
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
