"""A process ends in bounded time, whatever still runs in it: real processes, since one of them is ended by force."""

import subprocess
import sys

import pytest

from tessera.kernel.process.ending import STUCK

SERVICE = """
import asyncio
from tessera.kernel.process.ending import BoundedEnd

async def swallows_every_cancellation():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    end = BoundedEnd(0.2)
    {body}
    await asyncio.sleep(0.05)
    end.begin()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "body",
    ["task = asyncio.ensure_future(swallows_every_cancellation())", "end.begin(); import time; time.sleep(60)"],
    ids=["a task that swallows every cancellation", "a blocked event loop"],
)
def test_a_process_that_does_not_end_by_itself_is_ended_with_an_exit_code_of_its_own(body: str) -> None:
    ended = subprocess.run([sys.executable, "-c", SERVICE.format(body=body)], timeout=240, capture_output=True)
    assert ended.returncode == STUCK
    assert b"service_does_not_end" in ended.stdout + ended.stderr


def test_a_process_that_ends_by_itself_ends_as_before() -> None:
    ended = subprocess.run([sys.executable, "-c", SERVICE.format(body="pass")], timeout=240, capture_output=True)
    assert ended.returncode == 0, ended.stderr
