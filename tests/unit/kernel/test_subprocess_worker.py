"""Work in a process of its own: its answer, its end, and that nothing of it outlives whoever asked."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tessera.kernel.errors import Transient
from tessera.kernel.process.subprocess_worker import call_subprocess

HEAD = "import os, sys, time\nfrom tessera.kernel.process.subprocess_worker import answer\n"
PATIENT = 60.0


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module whose process answers by the function `work`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(body: str) -> str:
        Path(tmp_path, "worker_here.py").write_text(f"{HEAD}{body}\nanswer(work)\n")
        return "worker_here"

    return write


async def test_the_answer_is_what_the_process_makes_of_the_question(worker) -> None:
    module = worker("def work(question): return question.strip()[::-1]")
    assert await call_subprocess(module, b"abc", PATIENT) == b"cba"


async def test_it_has_the_lowest_priority_and_none_of_our_secrets(worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_NATS_PASSWORD", "hidden")
    module = worker("def work(question): return repr((os.nice(0), 'TESSERA_NATS_PASSWORD' in os.environ)).encode()")
    assert await call_subprocess(module, b"", PATIENT) == b"(19, False)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def work(question): raise ValueError('no such pool')", "no such pool"),
        ("def work(question): os.kill(os.getpid(), 9)", "ended with -9"),
        ("raise SystemExit('before it has read anything')", "before it has read anything"),
    ],
    ids=["fails", "is killed", "never begins"],
)
async def test_a_process_that_ends_without_an_answer_says_why(worker, body: str, said: str) -> None:
    with pytest.raises(Transient, match=said):
        await call_subprocess(worker(body), b"x" * 300_000, PATIENT)


async def test_a_process_that_hangs_is_killed(worker, tmp_path: Path) -> None:
    with pytest.raises(Transient, match="no answer within 1 s"):
        await call_subprocess(worker(_tells_its_pid(tmp_path)), b"", 1.0)
    assert _gone(tmp_path)


async def test_a_process_does_not_outlive_a_service_that_stops(worker, tmp_path: Path) -> None:
    requester = asyncio.create_task(call_subprocess(worker(_tells_its_pid(tmp_path)), b"", PATIENT))
    await _started(tmp_path)
    requester.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requester
    assert _gone(tmp_path)


async def test_a_process_does_not_outlive_a_service_that_is_killed(worker, tmp_path: Path) -> None:
    module = worker(_tells_its_pid(tmp_path))
    of = "tessera.kernel.process.subprocess_worker"
    service_code = (
        f"import asyncio; from {of} import call_subprocess; asyncio.run(call_subprocess('{module}', b'', 60))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", service_code, env=environment)
    await _started(tmp_path)
    service.send_signal(signal.SIGKILL)
    await service.wait()
    while not _gone(tmp_path):
        await asyncio.sleep(0.02)


def _tells_its_pid(folder: Path) -> str:
    return f"""
def work(question):
    open({str(folder / "new")!r}, "w").write(str(os.getpid()))
    os.rename({str(folder / "new")!r}, {str(folder / "pid")!r})
    while True:
        sum(range(1000))
"""


async def _started(folder: Path) -> None:
    while not Path(folder, "pid").exists():
        await asyncio.sleep(0.02)


def _gone(folder: Path) -> bool:
    """Ended; whether somebody has asked for its exit code yet does not matter."""
    try:
        stat = Path("/proc", Path(folder, "pid").read_text(), "stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
