"""Options by unique beginnings of their names, as Slurm's own commands take them."""

from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

SPEAKS = "slurm 22.05.8"
"""The Slurm whose words these commands have, as its `--version` is read by programs."""


def whole_name(name: str, known: Collection[str]) -> str:
    """The one known name that begins so; the name itself where none does, or several do."""
    found = [each for each in known if each.startswith(name)]
    return found[0] if name not in known and len(found) == 1 else name


def whole_words(words: Sequence[str], known: Collection[str]) -> list[str]:
    """A command line with the names of its options in full, up to a `--`."""
    end = words.index("--") if "--" in words else len(words)
    made = []
    for word in words[:end]:
        name, equals, value = word.partition("=")
        made.append(whole_name(name, known) + equals + value if name.startswith("--") and len(name) > 2 else word)
    return [*made, *words[end:]]


class AbbreviatingCommand(TyperCommand):
    """A command whose long options may be cut short."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line in which options are cut short; `-V` alone is answered."""
        if args in (["-V"], ["--version"]):
            print(SPEAKS)
            ctx.exit()
        known = {name for option in self.params for name in option.opts if name.startswith("--")} | {"--help"}
        return super().parse_args(ctx, whole_words(args, known))
