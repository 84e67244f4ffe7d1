"""`tessera up`: the local platform in the foreground, until Ctrl-C or SIGTERM."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tessera.client.sending.sdk import Notify
from tessera.kernel.ports import Clock
from tessera_local.platform import LEDGER_BYTES_MAX, Platform
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES, SINGLE

DEFAULT_DIRECTORY = Path(".tessera")
ROLL_SECONDS = 3600.0
ROLLED_GIB = LEDGER_BYTES_MAX / 2 / 1024**3


async def up(
    directory: Path = DEFAULT_DIRECTORY,
    *,
    services: Sequence[str] = SERVICES,
    nodes: Path | None = None,
    tenants: Sequence[str] = (),
    shards: Sequence[str] = (subjects.MAIN_SHARD,),
    sync: bool = False,
    time: bool = False,
    api_port: int = 0,
    notify: Notify = print,
    layout: str = SINGLE,
) -> None:
    """
    Run the platform until a signal comes; a second one does not hurry it. `time` also measures bare imports. The HTTP
    API listens on `api_port`; 0: on the port that it had here before, or a free one.

    Raises StartupError, in one line, when a part does not start; by then everything is stopped again.
    """
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_asked.set)
    platform = Platform(directory, services, nodes, tenants, shards, sync, layout, api_port=api_port, notify=notify)
    parts = f"NATS, Redis, a simulated cluster, and {len(services)} services for each of {len(shards)} shards"
    notify(f"starting in {platform.directory}: {parts if len(shards) > 1 else parts.partition(' for each')[0]}")
    starting = asyncio.create_task(platform.__aenter__())
    stopping, rolling = asyncio.create_task(stop_asked.wait()), asyncio.create_task(_keep_rolling(platform, notify))
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        rolling.cancel()
        await asyncio.gather(starting, rolling, return_exceptions=True)  # it stops what it had started
        return
    await starting
    try:
        notify(f"ready in {platform.timings['ready']:.2f} s; everything is in {platform.directory}")
        for shard in platform.shards:
            if url := platform.gateway_url_of(shard):
                notify(
                    f"HTTP API of shard {shard} at {url}; `tessera token new TENANT --shard {shard}` lets somebody in"
                )
                notify(f"the same in a browser: {url}/ui")
        notify(f"kubectl --kubeconfig {platform.kubeconfig} get pods -A shows the simulated cluster")
        if time:
            for line in timing_lines(platform.timings, await bare_import_seconds(services, platform.clock)):
                notify(line)
        await stopping
    finally:
        notify("stopping")
        rolling.cancel()
        await platform.close()


async def _keep_rolling(platform: Platform, notify: Notify) -> None:
    """Roll ledgers over before they are full, as a timer does on a cluster."""
    while True:
        await platform.clock.sleep(ROLL_SECONDS)
        for shard in platform.shards:
            code, said = await roll_over(platform, shard)
            if code or "nothing to roll over" not in said:
                notify(f"ledger of shard {shard}: {said}")


async def roll_over(platform: Platform, shard: str, larger_gib: float = ROLLED_GIB) -> tuple[int, str]:
    """
    Roll the ledger of a shard over where it has grown larger, into the platform's own backup of it.

    Returns the command's exit code, and what it says.
    """
    backup = platform.directory / "backup" / shard
    words = ("ledger", "roll", str(backup), "--shard", shard, "--larger-gib", str(larger_gib))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tessera", *words),
        env={**os.environ, "TESSERA_HOME": str(platform.directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode().strip()


async def bare_import_seconds(services: Sequence[str], clock: Clock) -> dict[str, float]:
    """Time that a fresh interpreter takes to import each service, one after the other: the floor of starting."""
    seconds: dict[str, float] = {}
    for service in services:
        began = clock.monotonic()
        command = (sys.executable, "-c", f"import tessera.{service}.main")
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        if await process.wait() == 0:
            seconds[service] = clock.monotonic() - began
    return seconds


def timing_lines(timings: Mapping[str, float], imports: Mapping[str, float]) -> list[str]:
    """Each part's time to ready, then the whole against the sum of bare imports."""
    lines = [f"{name:12} {seconds:7.3f} s" for name, seconds in timings.items()]
    lines += [f"{'import ' + name:12} {seconds:7.3f} s" for name, seconds in imports.items()]
    if floor := sum(imports.values()):
        lines.append(f"ready / sum of bare imports = {timings['ready'] / floor:.2f}")
    return lines
