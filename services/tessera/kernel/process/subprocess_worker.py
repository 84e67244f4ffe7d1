"""
Work that takes seconds of CPU, in a process of its own and of the lowest priority.

One process per question: `python -m MODULE` reads the question as one line of its standard input and writes the answer
to its standard output. It inherits no credentials, and when memory runs short it is the first to go. It ends with
whoever asked, even when that was killed: its standard input ends, and it with that.
"""

import asyncio
import os
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tessera.kernel.errors import Transient
from tessera.kernel.process.limits import session_gives_way
from tessera.kernel.tasks.task_group import gather_all

NICEST = 19
FIRST_TO_GO = b"1000"
INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")
COMPLAINT_CHARACTERS = 300


async def call_subprocess(module: str, question: bytes, seconds: float) -> bytes:
    """Raises Transient when the process cannot be started, ends without an answer or takes longer than `seconds`."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=_environment(),
            start_new_session=True,  # else its niceness might count only against the service's own
        )
    except OSError as error:
        raise Transient(f"{module}: cannot be started: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            return await _asked(process, module, question)
    except TimeoutError as error:
        raise Transient(f"{module}: no answer within {seconds:.0f} s") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _asked(process: Process, module: str, question: bytes) -> bytes:
    """Ask the worker; its standard input stays open and so tells it that we are alive."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(ConnectionError):  # it is gone already; what it said tells why
        process.stdin.write(question + b"\n")
        await process.stdin.drain()
    answer, complaint = await gather_all(process.stdout.read(), process.stderr.read())
    code = await process.wait()
    if code:
        text = complaint.decode(errors="replace").strip()[-COMPLAINT_CHARACTERS:]
        raise Transient(f"{module}: ended with {code}: {text}")
    return answer


def _environment() -> dict[str, str]:
    """The very packages that this process runs, and none of its secrets; one thread is enough."""
    passed_on = {name: os.environ[name] for name in INHERITED if name in os.environ}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return passed_on | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def answer(work: Callable[[bytes], bytes]) -> None:
    """The other side, in the process that was started: one question, one answer."""
    os.setpriority(os.PRIO_PROCESS, 0, NICEST)
    session_gives_way(NICEST)
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_bytes(FIRST_TO_GO)
    question = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.buffer.write(work(question))
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
