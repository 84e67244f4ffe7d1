"""What the pod of a notebook does before Jupyter runs: a token of its own, that its user alone reads."""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tessera.client.commands.sessions import idle_watch
from tessera.client.commands.sessions.notebook import BELOW_ITS_PATH, WATCH, WITH_TOKEN
from tessera.client.commands.sessions.reaching import TOKEN_FILE, tell_warnings
from tessera.client.slurm.in_pods import OUTPUT, PodExec

PROGRAM = """\
echo "$JUPYTER_TOKEN_FILE" "$@"
tr '\\0' ' ' </proc/$$/environ
"""


def run(folder: Path) -> tuple[str, str, int]:
    """What the program writes, the token, and the mode of its file."""
    file = folder / "token"
    script = WITH_TOKEN.replace(TOKEN_FILE, str(file))
    own = ["/bin/sh", "-c", PROGRAM, "jupyter", "lab", "--port=8888"]
    words = ["/bin/sh", "-c", script, "notebook", "no program", "8888", *own]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    return done.stdout, file.read_text(), file.stat().st_mode & 0o777


def test_jupyter_is_told_the_file_of_the_token_and_nobody_else_the_token(tmp_path: Path) -> None:
    said, token, mode = run(tmp_path)
    assert re.fullmatch("[0-9a-f]{48}", token)
    assert (said.splitlines()[0], mode) == (f"{tmp_path}/token lab --port=8888", 0o600)
    assert token not in said


def test_kubernetes_finds_no_variable_to_fill_in_what_the_pod_runs() -> None:
    assert "$(" not in WITH_TOKEN + WATCH


def test_behind_an_ingress_jupyter_serves_below_the_path_that_the_pod_has() -> None:
    words = [*BELOW_ITS_PATH, "echo", "lab", "--port=8888"]
    done = subprocess.run(words, capture_output=True, text=True, env={"TESSERA_SESSION_PATH": "/lab/book/"})
    assert done.stdout == "lab --port=8888 --ServerApp.base_url=/lab/book/\n"


def test_each_run_has_another_token(tmp_path: Path) -> None:
    assert run(tmp_path)[1] != run(tmp_path)[1]


def test_without_a_token_nothing_runs(tmp_path: Path) -> None:
    script = WITH_TOKEN.replace(TOKEN_FILE, str(tmp_path / "missing" / "token"))
    done = subprocess.run(
        ["/bin/sh", "-c", script, "notebook", "", "8888", "echo", "open"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


class Warned:
    """Calls into a pod whose file of warnings has this, look by look; "" as a file that is not there."""

    def __init__(self, *looks: str) -> None:
        self.looks, self.paths, self.over = list(looks), list[str](), asyncio.Event()

    async def run(self, pod: str, words: Sequence[str], take: Callable[[int, bytes], None], **_: Any) -> int:
        self.paths.append(words[-1])
        if not self.looks:
            self.over.set()
            return 1
        text = self.looks.pop(0)
        take(OUTPUT, text.encode())
        return 0 if text else 1


async def test_the_command_tells_each_warning_of_the_pod_once(capsys: pytest.CaptureFixture[str]) -> None:
    pods = Warned("", "in 600 s it pauses\n", "in 600 s it pauses\n", "", "in 600 s it pauses\n")
    telling = asyncio.create_task(tell_warnings(cast(PodExec, pods), "book-1-0", every=0.001))
    await asyncio.wait_for(pods.over.wait(), 60)
    telling.cancel()
    assert set(pods.paths) == {idle_watch.WARNING_FILE}
    assert capsys.readouterr().err.splitlines() == ["notebook: in 600 s it pauses"] * 2
