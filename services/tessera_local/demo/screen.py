"""The live view: a panel on a terminal, one plain line every two seconds elsewhere."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tessera.kernel.ports import Clock
from tessera_local.demo import picture as p
from tessera_local.demo.picture import NodeShape, Picture

PLAIN_SECONDS = 2.0
FRAME_SECONDS = 0.2
WIDTH_MAX = 100
WHOLE_GPU = 1000
COLOURS = {
    p.WAITING: "yellow",
    p.STARTING: "cyan",
    p.RUNNING: "blue",
    p.STOPPING: "magenta",
    p.SUCCEEDED: "green",
    p.FAILED: "red",
    p.REFUSED: "bright_black",
}


class Screen(Protocol):
    """`happening` is one sentence on what is going on; `announce` also keeps the sentence for later."""

    happening: str

    def announce(self, sentence: str) -> None:
        """Set `happening`, and print the sentence where printed lines stay."""

    async def run(self) -> None:
        """Show until cancelled; the last state is shown before it ends."""


def screen(picture: Picture, jobs: int, clock: Clock) -> Screen:
    """The one that suits where we write to."""
    console = Console(highlight=False)
    console = Console(highlight=False, width=min(console.width - 2, WIDTH_MAX))  # room for the echo of Ctrl-C
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(picture, jobs, clock, console)
    return PlainScreen(picture, jobs, clock)


class PlainScreen:
    def __init__(self, picture: Picture, jobs: int, clock: Clock) -> None:
        self._picture, self._jobs, self._clock = picture, jobs, clock
        self._began = clock.monotonic()
        self.happening = ""

    def announce(self, sentence: str) -> None:
        """Print the sentence at once, behind the seconds since the beginning."""
        self.happening = sentence
        self._print(sentence)

    async def run(self) -> None:
        """Print the counts every two seconds until cancelled, and once more at the end."""
        try:
            while True:
                await self._clock.sleep(PLAIN_SECONDS)
                self._progress()
        finally:
            self._progress()

    def _progress(self) -> None:
        counts = self._picture.counts
        phases = "  ".join(f"{phase} {counts[phase]}" for phase in p.SHOWN if counts[phase])
        self._print(
            f"{phases}  | GPUs {self._picture.gpus_taken_percent} %, {self._picture.events_per_second:.0f} ev/s"
        )

    def _print(self, text: str) -> None:
        print(f"{self._clock.monotonic() - self._began:5.1f} s  {text}")
        sys.stdout.flush()


class LiveScreen:
    def __init__(self, picture: Picture, jobs: int, clock: Clock, console: Console) -> None:
        self._picture, self._jobs, self._clock, self._console = picture, jobs, clock, console
        self._began = clock.monotonic()
        self.happening = ""

    def announce(self, sentence: str) -> None:
        """Show the sentence from the next frame on, until another comes."""
        self.happening = sentence

    async def run(self) -> None:
        """Draw the panel five times a second until cancelled, and once more at the end."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            try:
                while True:
                    live.update(self._panel(), refresh=True)
                    await self._clock.sleep(FRAME_SECONDS)
            finally:
                live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        seconds = self._clock.monotonic() - self._began
        grid = list(occupancy(self._picture, self._console.width - 4))
        room = self._console.height - len(grid) - len(p.SHOWN) - 6
        lines = list(self._picture.lines)[-room:] if room > 0 else []
        parts: list[RenderableType] = [Text(self.happening, style="bold", no_wrap=True, overflow="ellipsis")]
        parts += [self._bar(phase) for phase in p.SHOWN]
        parts += [self._about_gpus(), *grid]
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
        title = f"Tessera demo, {seconds:.0f} s: {self._jobs} jobs, {len(self._picture.nodes)} nodes"
        return Panel(Group(*parts), title=title, width=self._console.width, padding=(0, 1))

    def _bar(self, phase: str) -> Text:
        count, width = self._picture.counts[phase], self._console.width - 20
        length = -(-count * width // max(1, self._jobs))
        return Text.assemble(f"{phase:10}{count:4} ", ("█" * min(length, width), COLOURS[phase]))

    def _about_gpus(self) -> Text:
        picture = self._picture
        rate = f"{picture.events_per_second:.0f} events/s"
        text = f"{picture.gpus} GPUs, {picture.gpus_taken_percent} % allocated: █ taken, ▄ shared, · free    {rate}"
        return Text(text, style="bold", no_wrap=True, overflow="ellipsis")


def occupancy(picture: Picture, width: int) -> Iterator[Text]:
    """Node by node, one sign per GPU; nodes of one model share lines."""
    for model, nodes in groupby(picture.nodes, key=lambda node: node.model):
        line = Text(f"{model:8}")
        for node in nodes:
            if line.cell_len + node.gpus > width:
                yield line
                line = Text(" " * 8)
            line.append_text(_node(picture, node)).append(" ")
        yield line


def _node(picture: Picture, node: NodeShape) -> Text:
    text = Text()
    for device in range(node.gpus):
        taken = picture.taken[node.name, device]
        if not taken:
            text.append("·", style="bright_black")
        else:
            text.append("█" if taken >= WHOLE_GPU else "▄", style="green" if taken >= WHOLE_GPU else "cyan")
    return text
