"""docs/first-job.md as a reader follows it: each block of commands, in the order of the page, against `tessera up`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 240.0


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A checkout's folder with the platform of the first block; nobody sits there to answer what `apply` asks."""
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    program(
        programs / "tessera", f'case "$1" in apply) set -- "$@" --yes;; esac\nexec {sys.executable} -m tessera "$@"'
    )
    command = ["sh", "-c", "exec .venv/bin/tessera up --tenant demo"]
    up = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    assert any("/ui" in line for line in up.stdout), "it says where the page is"
    yield tmp_path
    up.terminate()
    assert up.wait(30) == 0


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "120"}


def test_the_tutorials_commands_do_what_the_page_says(home: Path) -> None:
    blocks = BLOCK.findall((REPOSITORY / "docs" / "first-job.md").read_text())
    assert blocks[0] == "make setup\n.venv/bin/tessera up --tenant demo\n"
    until_nodes_are_known = "until tessera nodes -o name | grep -q gpu-3; do sleep 0.2; done\n"
    script = "echo '=== block'\n".join([until_nodes_are_known, *blocks[1:]])
    script = script.replace("tessera", '"$PWD"/.venv/bin/tessera', 1)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    doctor, configured, submitted, waits, ended, token, slurm, replayed = done.stdout.split("=== block\n")[1:]
    assert "config" in doctor
    assert "version 1 is in force" in configured
    assert "simulated program" in submitted
    assert "Each of these alone would start it now (tried, not guessed):" in waits
    assert "WaitingForQuota" in waits
    assert re.search(r"train .* succeeded", ended)
    assert token.startswith("tessera_")
    assert "PARTITION" in slurm
    assert replayed.rstrip().endswith("every decision recomputed is equal")
