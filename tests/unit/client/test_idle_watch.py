"""What stops a notebook that nobody uses: run as in its pod, beside a server that answers as Jupyter does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tessera.client.commands.sessions import idle_watch
from tessera.client.commands.sessions.notebook import WITH_TOKEN
from tessera.client.commands.sessions.reaching import TOKEN_FILE
from tessera.domain.last_words import PodWord, read_word
from tessera_schemas.reasons import Code
from tests.unit.client.watched_notebook import Watched

LONG_AGO = "2020-01-01T00:00:00.000000Z"
SERVER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Jupyter(ThreadingHTTPServer):
    """The lists of a Jupyter server; without terminals it knows no path of theirs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.kernels: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.is_well, self.below = True, "/"


class Answers(BaseHTTPRequestHandler):
    server: Jupyter

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers["Authorization"])
        is_known = self.path.startswith(f"{self.server.below}api/kernels")
        self.send_response(500 if not self.server.is_well else 200 if is_known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.kernels).encode())

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def jupyter() -> Iterator[Jupyter]:
    with Jupyter() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def kernel(state: str = "idle", used: str = LONG_AGO) -> dict[str, Any]:
    return {"id": "k", "execution_state": state, "last_activity": used}


@pytest.mark.parametrize(("action", "code"), [("pause", Code.PAUSED_AS_IDLE), ("end", Code.ENDED_AS_IDLE)])
def test_a_notebook_that_nobody_uses_is_warned_and_then_stopped_with_a_word(
    tmp_path: Path, jupyter: Jupyter, action: str, code: Code
) -> None:
    jupyter.kernels = [kernel()]
    watched = Watched(tmp_path, jupyter.server_port, 4, SERVER, action)
    assert f"it {action}s; run a cell to keep it" in watched.said_until("nobody has used it")
    assert "run a cell" in watched.warning.read_text()
    assert watched.end() == idle_watch.STOPPED
    assert read_word(watched.word.read_text()) == PodWord(code, "no kernel, terminal or program did anything for 4 s")
    assert set(jupyter.tokens) == {f"token {watched.token.read_text()}"}


def test_work_after_the_warning_takes_it_back(tmp_path: Path, jupyter: Jupyter) -> None:
    watched = Watched(tmp_path, jupyter.server_port, 600, SERVER)
    watched.said_until("nobody has used it")  # it warns from the first second on
    jupyter.kernels = [kernel("busy")]
    watched.said_until("in use again")
    jupyter.kernels = [kernel("idle", datetime.now(UTC).isoformat())]
    watched.process.send_signal(signal.SIGTERM)
    assert watched.end() == 128 + signal.SIGTERM, "a signal is the server's, and so is the exit code"
    assert not watched.word.exists()


def test_a_notebook_behind_an_ingress_is_asked_below_its_path(tmp_path: Path, jupyter: Jupyter) -> None:
    jupyter.kernels, jupyter.below = [kernel()], "/lab/book/"
    watched = Watched(tmp_path, jupyter.server_port, 600, SERVER, TESSERA_SESSION_PATH="/lab/book/")
    watched.said_until("nobody has used it")
    jupyter.kernels = [kernel("busy")]
    watched.said_until("in use again")
    watched.process.send_signal(signal.SIGTERM)
    watched.end()


def test_a_server_that_does_not_answer_is_never_idle(tmp_path: Path, jupyter: Jupyter) -> None:
    jupyter.is_well = False
    over = tmp_path / "over"
    waits = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.05)\nexit(3)"
    watched = Watched(tmp_path, jupyter.server_port, 1, [sys.executable, "-c", waits])
    watched.said_until("so is never idle")
    time.sleep(2)  # twice as long as a notebook may be idle
    over.touch()
    assert watched.end() == 3
    assert not watched.word.exists()


def test_a_program_at_work_counts_as_use_whatever_kernels_say() -> None:
    before, after = {"7": 1.0, "8": 5.0}, {"7": 1.5, "9": 60.0}
    assert idle_watch.works(before, after, 5.0)
    assert not idle_watch.works(before, after, 6.0)
    assert str(os.getpid()) in idle_watch.core_seconds(())
    assert str(os.getpid()) not in idle_watch.core_seconds((os.getpid(),))


def test_without_a_python_the_notebook_runs_and_says_that_nothing_stops_it(tmp_path: Path) -> None:
    (tmp_path / "od").symlink_to("/usr/bin/od")
    for name in ("od", "tr", "mv"):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        path.symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    script = WITH_TOKEN.replace(TOKEN_FILE, str(tmp_path / "token"))
    environment = {"PATH": str(tmp_path), "TESSERA_SESSION_IDLE_SECONDS": "60"}
    words = ["/bin/sh", "-c", script, "notebook", "source", "8888", "/bin/echo", "open"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, "no python in the image" in done.stderr) == (0, "open\n", True), done
