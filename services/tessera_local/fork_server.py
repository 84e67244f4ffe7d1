"""
A fork server: one process that has imported the services, and forks one of them whenever it is asked to.

In, on standard input: a JSON line for each process, as `ForkRequest` has it. Out, on standard output: `{"pid": …}` for
each request in turn, and `{"pid": …, "code": …}` when that process has ended. Each fork is `python -m MODULE ARGUMENTS`
with the environment, directory, log and session of its own that a new interpreter would have; only its command line
reads as this one's. No thread and no event loop runs here, so that a fork is as good as a fresh start. The server ends
when its input ends; on Linux its processes are told to stop then.
"""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TypedDict

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class ForkRequest(TypedDict):
    """One process to fork; `name` is what `top` and `ps -o comm` call it, on Linux."""

    name: str
    module: str
    arguments: Sequence[str]
    environment: dict[str, str]
    directory: str
    log: str


def end_with_parent() -> None:
    """
    Asks, in a child before it runs, to be stopped when the parent dies, even by kill -9 (Linux).

    Elsewhere children of a killed platform live on, and its lock file keeps the next one away from their data.
    """
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Serve until the input ends. In each fork this returns from `_serve` with what the fork is to run."""
    _directory, *modules = sys.argv[1:]  # the directory is there for people who look for the platform's processes
    gc.disable()  # what is imported stays: looking for cycles in it, and rich for structlog, is a tenth of the time
    sys.modules["rich"] = None  # type: ignore[assignment]
    for module in modules:
        import_module(module)
    gc.freeze()  # a collection that touches shared objects would copy their pages
    gc.enable()
    if request := _serve():
        _become(request)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _serve() -> ForkRequest | None:
    """Returns None when the input has ended, and in a fork what was asked for."""
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    unread = b""
    while True:
        readable, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
        if ended in readable:
            os.read(ended, 4096)
            for pid, code in _ended_children():
                _report(pid=pid, code=code)
        if sys.stdin.fileno() in readable:
            if not (received := os.read(sys.stdin.fileno(), 65536)):
                return None
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(ended)
                    os.close(wakes)
                    request: ForkRequest = json.loads(line)
                    return request
                _report(pid=pid)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Exit codes of those that have ended; minus the signal for one that a signal ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _report(**news: int) -> None:
    os.write(sys.stdout.fileno(), json.dumps(news).encode() + b"\n")


def _become(request: ForkRequest) -> None:
    """Take on what an interpreter of its own would have been started with."""
    end_with_parent()
    os.setsid()
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_NAME, request["name"].encode())
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
        os.dup2(source, target.fileno())
    os.close(nothing)
    os.close(log)
    sys.argv = [request["module"], *request["arguments"]]


if __name__ == "__main__":
    main()
