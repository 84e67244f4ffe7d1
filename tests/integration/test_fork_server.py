"""Processes that are forked from a warm one are what a new interpreter would have been, and their ends are reported."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera_local.forking import ForkedProcess, ForkServer

SAID = """
import json, os, signal, sys, warm
print(json.dumps({
    "arguments": sys.argv[1:], "name": __name__, "home": os.environ.get("HOME_OF_TESTS"), "folder": os.getcwd(),
    "leads": os.getsid(0) == os.getpid(), "warm": warm.IMPORTED_BY != os.getpid(), "stdin": sys.stdin.read(),
    "child_signal": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
}))
sys.exit(3)
"""
SLEEPS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"
SECONDS = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in {"said": SAID, "sleeps": SLEEPS, "warm": "import os\nIMPORTED_BY = os.getpid()\n"}.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[ForkServer]:
    made = server_of(folder, ["warm"])
    yield made
    await made.close()


def server_of(folder: Path, modules: Sequence[str]) -> ForkServer:
    return ForkServer(folder, modules, {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])})


async def launched(server: ForkServer, module: str, log: Path, *words: str) -> ForkedProcess:
    return await server.launch("a-part", [sys.executable, "-m", module, *words], {"HOME_OF_TESTS": "here"}, log)


async def up(server: ForkServer, log: Path) -> ForkedProcess:
    process = await launched(server, "sleeps", log)
    async with asyncio.timeout(SECONDS):
        while not log.exists() or "up" not in log.read_text():
            await asyncio.sleep(0.01)
    return process


async def test_a_fork_has_everything_of_its_own_but_the_imports(server: ForkServer, folder: Path) -> None:
    process = await launched(server, "said", folder / "said.log", "one", "two")
    assert await process.wait() == process.returncode == 3
    assert json.loads((folder / "said.log").read_text()) == {
        "arguments": ["one", "two"],
        "name": "__main__",
        "home": "here",
        "folder": os.getcwd(),
        "leads": True,
        "warm": True,
        "stdin": "",
        "child_signal": True,
    }


async def test_a_fork_that_a_signal_ends_says_by_which(server: ForkServer, folder: Path) -> None:
    first, second = await up(server, folder / "first.log"), await up(server, folder / "second.log")
    first.send_signal(signal.SIGTERM)
    second.kill()
    assert (await first.wait(), await second.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    first.send_signal(signal.SIGTERM)  # nobody is there, and nobody else is hit


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
async def test_a_fork_server_that_died_takes_its_forks_along_and_comes_back(server: ForkServer, folder: Path) -> None:
    orphan = await up(server, folder / "orphan.log")
    parent = int(Path(f"/proc/{orphan.pid}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert await orphan.wait() == -signal.SIGTERM
    again = await up(server, folder / "again.log")
    assert again.returncode is None
    again.kill()
    await again.wait()


async def test_an_import_that_fails_is_one_sentence_that_names_the_log(folder: Path) -> None:
    server = server_of(folder, ["no_such_module"])
    with pytest.raises(StartupError, match=r"the fork server ended; log: .*fork-server\.log"):
        await launched(server, "said", folder / "said.log")
    await server.close()
    assert "no_such_module" in (folder / "logs" / "fork-server.log").read_text()


def test_a_process_that_has_ended_and_was_not_reported_yet_takes_any_signal() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ForkedProcess(gone.pid).kill()
