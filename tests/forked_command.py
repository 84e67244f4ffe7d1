"""
`tessera WORDS` in a process forked from one that has imported the command, which spares half a second of CPU each.

The process has the environment, directory and output that a new interpreter would have been given, and ends with the
same code. How long a new one takes, and that it finds its modules, is seen where tests start one.
"""

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

HEAVY = ("lab", "cluster")
"""Modules of commands that few tests run and that load much."""
COMMANDS = Path(__file__).parents[1] / "services/tessera/client/commands"
PRELOADED = [
    __name__,
    *(f"tessera.client.commands.{each.stem}" for each in sorted(COMMANDS.glob("[a-z]*.py")) if each.stem not in HEAVY),
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)


async def run_command(words: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str, str]:
    """Exit code, output and errors of the command. Raises TimeoutError when it takes longer than `seconds`."""
    with TemporaryDirectory(prefix="tessera-said-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = FORKS.Process(target=become, args=(words, dict(environment), os.getcwd(), str(out), str(err)))
        process.start()
        try:
            await asyncio.to_thread(process.join, seconds)
        finally:
            is_late = process.exitcode is None
            if is_late:
                process.kill()
                process.join()
        if is_late:
            raise TimeoutError(f"tessera {' '.join(words)}: not at its end after {seconds:g} s")
        assert process.exitcode is not None
        return process.exitcode, out.read_text(), err.read_text()


def become(words: Sequence[str], environment: Mapping[str, str], directory: str, out: str, err: str) -> None:
    """The process is the command from here on."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, out), (2, err)):
        written = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(written, number)
        os.close(written)
    sys.argv = ["tessera", *words]
    runpy.run_module("tessera", run_name="__main__", alter_sys=True)
