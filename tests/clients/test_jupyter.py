"""A real Jupyter server in the script of a notebook's pod: kernels at work keep it, and idleness pauses it."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tessera.client.commands.sessions import idle_watch
from tessera.domain.last_words import PodWord, read_word
from tessera_schemas.reasons import Code
from tests.unit.client.watched_notebook import Watched

CLIENTS = Path(__file__).parents[2] / "build" / "clients" / "bin"
RUN_A_CELL = Path(__file__).parent / "programs" / "run_a_cell.py"
UNTIL_TAKEN_BACK = """\
import pathlib, time
warning = pathlib.Path({path!r})
while warning.read_text():
    time.sleep(0.1)
time.sleep(3)
print("warned", repr(warning.read_text()))
"""
"""A cell that takes no time on a core: it waits for the end of the warning, and three times as long as one takes."""
pytestmark = [
    pytest.mark.skipif(not (CLIENTS / "jupyter").exists(), reason="`make test-clients` makes build/clients"),
]


def watched(folder: Path, idle: int) -> tuple[Watched, str]:
    """A notebook as its pod runs it, warned a second after it was used last, and where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    listens = ("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0")
    server = (str(CLIENTS / "jupyter"), "server", "--no-browser", "--allow-root", *listens)
    return Watched(folder, port, idle, server), f"http://127.0.0.1:{port}"


def test_a_busy_kernel_takes_the_warning_back_and_keeps_the_notebook(tmp_path: Path) -> None:
    notebook, url = watched(tmp_path, 600)
    try:
        notebook.said_until("nobody has used it")
        (cell := tmp_path / "cell").write_text(UNTIL_TAKEN_BACK.format(path=str(notebook.warning)))
        words = (CLIENTS / "python", RUN_A_CELL, url, notebook.token, cell)
        ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert (ran.returncode, ran.stdout) == (0, "warned ''\n"), ran
        assert "in use again" in notebook.said_until("nobody has used it"), "it is idle once the cell has ended"
    finally:
        notebook.process.send_signal(signal.SIGTERM)
        notebook.end()
    assert not notebook.word.exists()


def test_a_notebook_that_nobody_uses_is_warned_and_paused(tmp_path: Path) -> None:
    notebook, _ = watched(tmp_path, 15)
    notebook.said_until("nobody has used it")
    notebook.said_until("it pauses")
    assert notebook.end() == idle_watch.STOPPED
    who = "no kernel, terminal or program did anything for 15 s"
    assert read_word(notebook.word.read_text()) == PodWord(Code.PAUSED_AS_IDLE, who)
