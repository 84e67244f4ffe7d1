"""
Services that fail as a file says: `python -m tests.operations.failing FOLDER SERVICES SHARD`.

While FOLDER holds a file of a service's name, that service's next question of its clock or of the views is a bug,
whichever of its handlers and loops asks: an exception that nobody foresaw.
"""

import asyncio
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tessera.kernel.clock import SystemClock
from tessera.kernel.process import lifecycle
from tessera.kernel.service.context import Ports
from tessera.launch import run_named


class FailingClock(SystemClock):
    """The machine's, of one service, as long as its file is not there."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now_ms(self) -> int:
        self._fail()
        return super().now_ms()

    async def sleep(self, seconds: float) -> None:
        self._fail()
        await super().sleep(seconds)
        self._fail()

    def _fail(self) -> None:
        if self._file.exists():
            raise ZeroDivisionError(f"a bug of {self._file.name}")


class FailingStore:
    """The views, of one service, as long as its file is not there."""

    def __init__(self, store: Any, clock: FailingClock) -> None:
        self._store, self._clock = store, clock

    def __getattr__(self, name: str) -> Any:
        self._clock.now_ms()
        return getattr(self._store, name)


def main() -> int:
    """Run the services until they are told to stop; returns the exit code."""
    folder, services, shard = sys.argv[1:]
    for service in services.split("+"):
        module = import_module(f"tessera.{service}.main")

        def failing(file: Path, serve: lifecycle.Serve) -> lifecycle.Serve:
            async def serves(ports: Ports, settings: Any, stop: asyncio.Event) -> None:
                clock = FailingClock(file)
                await serve(replace(ports, clock=clock, store=FailingStore(ports.store, clock)), settings, stop)

            return serves

        module.serve = failing(Path(folder, service), module.serve)  # type: ignore[attr-defined]
    return run_named(services, shard)


if __name__ == "__main__":
    sys.exit(main())
