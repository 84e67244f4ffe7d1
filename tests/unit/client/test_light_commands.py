"""What a command imports: CPU time that everybody pays with every call."""

import subprocess
import sys
from pathlib import Path

import pytest

from tessera.client.cli import COMMANDS, ImportedWhenCalled

HEAVY = {"aiohttp.client", "rich.console", "numpy", "kubernetes", "nats", "tessera.domain.state", "tessera.engine"}


def imported_by(folder: Path, *words: str) -> set[str]:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        f"sys.argv = ['tessera', *{words!r}]\n"
        "from tessera.client.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert "start it with `tessera up`" in ended.stderr
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    "words", [("ls",), ("get", "train"), ("nodes",), ("squeue",), ("submit", "--gpus", "1", "--", "true")], ids=" ".join
)
def test_a_frequent_command_imports_no_library_that_it_has_no_use_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert imported_by(tmp_path, *words) & HEAVY == set()


def test_every_command_of_the_table_is_there_under_its_name() -> None:
    commands = ImportedWhenCalled()
    assert {name: commands[name].name for name in COMMANDS} == {name: name for name in COMMANDS}
    assert all(commands[name].help for name in COMMANDS)
