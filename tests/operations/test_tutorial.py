"""The tutorials as a reader follows them: each block of commands, in the order of its page, against `tessera up`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 480.0


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
    assert up.wait(SECONDS) == 0


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "120"}


def follow(page: str, home: Path) -> list[str]:
    """Run the page's blocks behind the one that starts the platform; the output of each."""
    blocks = BLOCK.findall((REPOSITORY / "docs" / page).read_text())
    assert blocks[0].endswith(".venv/bin/tessera up --tenant demo\n")
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
    return done.stdout.split("=== block\n")[1:]


def test_the_tutorials_commands_do_what_the_page_says(home: Path) -> None:
    doctor, configured, submitted, waits, ended, token, slurm, replayed = follow("first-job.md", home)
    assert "config" in doctor
    assert "version 1 is in force" in configured
    assert "simulated program" in submitted
    assert "Each of these alone would start it now (tried, not guessed):" in waits
    assert "WaitingForQuota" in waits
    assert re.search(r"train .* succeeded", ended)
    assert token.startswith("tessera_")
    assert "PARTITION" in slurm
    assert replayed.rstrip().endswith("every decision recomputed is equal")


@pytest.mark.skipif(which("kubectl") is None, reason="no kubectl on this machine, which the page uses")
@pytest.mark.parametrize("before", [(), ("first-job.md",)], ids=["by itself", "behind the first page"])
def test_the_gangs_of_the_second_tutorial_wait_whole_and_start_whole(home: Path, before: tuple[str, ...]) -> None:
    for page in before:
        follow(page, home)
    configured, busy, _, waiting, reasons, started, ended = follow("first-gang.md", home)
    assert ("nothing changes" if before else "version 1 is in force") in configured
    assert len(re.findall(r"^gpu-\d .* 0/8 ", busy, re.MULTILINE)) == 3, busy
    assert re.search(r"train .* queued", waiting)
    assert re.search(r"pair .* queued", waiting)
    assert len(re.findall(r"^pair-\S+ +<none>$", waiting, re.MULTILINE)) == 2
    assert "train-" not in waiting.partition("NODE")[2], "no pod is made before there is room for all"
    assert "Each of these alone would start it now (tried, not guessed):" in reasons
    assert re.search(r"waits in queue default, place \d in the line", reasons.partition("as of")[2])
    assert len(re.findall(r"^pair-\S+ +gpu-\d$", started, re.MULTILINE)) == 2
    assert "simulated program, rank 1" in ended
    assert "simulated program, rank 0" in ended
    assert re.search(r"train .* succeeded", ended)
    assert re.search(r"pair .* succeeded", ended)
