"""
CPU that people pay with every call: the help, a list of jobs by HTTP, and the import of the SDK in a program.

User and system time of one process each; the floor is the start of Python in the same round.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from resource import RUSAGE_CHILDREN, getrusage

from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import TENANT, start_platform

BARE = ("-c", "pass")
CALLS = {
    "`tessera --help`": (("-m", "tessera", "--help"), "<= 250"),
    "`tessera ls` by HTTP": (("-m", "tessera", "ls"), "<= 250"),
    "import of the SDK": (("-c", "from tessera.client import submit"), "<= 150"),
}
UP = """
import asyncio, sys, tempfile, pathlib, tessera_local.platform as local
async def up():
    with tempfile.TemporaryDirectory() as home:
        async with local.Platform(pathlib.Path(home), layout=sys.argv[1]): pass
asyncio.run(up())
"""
TOKEN_SECONDS = 10.0
"""Time that a gateway may take to accept a token that was just made."""


async def client(rounds: int) -> list[ReportRow]:
    """One row for each call, in milliseconds of CPU, in front of a small platform without jobs."""
    async with start_platform(1, False) as on:
        made = _python(("-m", "tessera", "token", "new", TENANT, "--home", str(on.platform.directory)), {})
        environment = {"TESSERA_API": on.platform.gateway_url, "TESSERA_TOKEN": made.strip()}
        await _until_accepted(environment)
        return [_row(what, words, reach, environment, rounds) for what, (words, reach) in CALLS.items()]


async def start(rounds: int, layout: str) -> list[ReportRow]:
    """The start of a platform until it is ready, and its stop, over all its processes; most of it is imports."""
    return [_row(f"start of a platform, {layout} services", ("-c", UP, layout), "", {}, rounds)]


async def _until_accepted(environment: Mapping[str, str]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + TOKEN_SECONDS
    while True:
        try:
            _python(("-m", "tessera", "ls"), environment)
        except subprocess.CalledProcessError:
            if clock.monotonic() > until:
                raise
            await clock.sleep(0.2)
        else:
            return


def _row(what: str, words: tuple[str, ...], reach: str, environment: Mapping[str, str], rounds: int) -> ReportRow:
    pairs = [(cpu_ms(BARE, environment), cpu_ms(words, environment)) for _ in range(rounds)]
    floors, found = zip(*pairs, strict=True)
    return ReportRow(f"{what}, CPU", "ms", reach, found, "start of Python", floors)


def cpu_ms(words: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """User and system time of one Python process, in milliseconds. Raises CalledProcessError for one that fails."""
    before = getrusage(RUSAGE_CHILDREN)
    _python(words, environment)
    after = getrusage(RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _python(words: tuple[str, ...], environment: Mapping[str, str]) -> str:
    command, inherited = (sys.executable, *words), {**os.environ, **environment}
    return subprocess.run(command, env=inherited, capture_output=True, text=True, check=True).stdout
