"""The campaign: phases of faults under load, each followed by a full account of what is stored."""

import asyncio
import os
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from tessera.client.ledger.replay import verify
from tessera.kernel.ports import ApiError
from tests.chaos.faults import Fault, Faults
from tests.chaos.load import Load
from tests.chaos.three import ServerFaults, ThreeServerPlatform, places
from tests.chaos.world import ChaosPlatform, World, opened, readiness
from tests.e2e.platform_checks import assert_all_is_well

DISK_BYTES = 512 * 2**20
PROGRESS_SECONDS = 5.0


@dataclass
class Account:
    """Figures of the whole campaign, for the last lines."""

    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    ended: int = 0
    users_pods: int = 0
    messages: int = 0
    examined: Counter[str] = field(default_factory=Counter)
    ends_by_themselves: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    kinds: Sequence[Fault]
    seconds: float


class Broken(Exception):
    """A phase after which something is not as it must be."""


class Mending(Protocol):
    """Whoever makes faults also puts right what they left behind."""

    async def heal(self) -> None: ...


class Campaign:
    """Phases on one platform. Says what happens as it happens; raises Broken."""

    def __init__(self, world: World, faults: Mending, load: Load, chance: Random, account: Account) -> None:
        self._world, self._faults, self._load, self._chance, self._account = world, faults, load, chance, account
        self._began = time.monotonic()

    async def run(self, phase: Phase) -> None:
        """Load and faults for the phase's seconds; then everything heals, ends and is accounted for."""
        self._say(phase, "begins")
        progress = asyncio.create_task(self._progress(phase))
        try:
            async with self._load.running():
                await self._make_faults(phase)
                await self._faults.heal()
            await self._judge(phase)
        except (AssertionError, TimeoutError) as error:
            what = str(error) or traceback.format_exc()  # an assert without words
            raise Broken(f"{phase.name}: {what}; not ready: {await readiness(self._world.live.platform)}") from error
        finally:
            progress.cancel()

    async def _make_faults(self, phase: Phase) -> None:
        end = time.monotonic() + phase.seconds
        rest: list[Fault] = []
        while time.monotonic() < end:
            if not rest:  # each kind once before any comes again
                rest = list(phase.kinds)
                self._chance.shuffle(rest)
            fault = rest.pop()
            try:
                said = await fault()
            except ApiError as error:  # an order of another fault hit this one's own call
                self._say(phase, f"{fault.__name__.replace('_', ' ')} was refused: {error}")
                continue
            self._account.faults[fault.__name__.replace("_", " ")] += 1
            self._say(phase, said)
            await asyncio.sleep(self._chance.uniform(0.5, 3.0))

    async def _judge(self, phase: Phase) -> None:
        live = self._world.live
        await live.settle()
        wrong = await self._load.clear_users_pods()
        report = await assert_all_is_well(live)
        await live.look_at_ends()
        wrong += live.unwell() + self._unexpected() + [f"a submit was refused: {why}" for why in self._load.refused]
        if wrong:
            raise Broken(f"{phase.name}: " + "; ".join(wrong[:10]))
        replay = verify(live.stored)
        self._account.examined = Counter(report.examined)  # of the whole ledger so far
        self._say(
            phase,
            f"well: checker {sum(report.examined.values())} looks, replay {replay.recomputed} of {replay.messages} "
            f"messages recomputed, {len(live.acknowledged)} acknowledged submits ended exactly once",
        )

    def _unexpected(self) -> list[str]:
        """Jobs that did not end as their programs would, whoever took their pods or nodes, unless cancelled."""
        outcomes = self._world.live.outcomes
        return [
            f"job {job} {outcomes.get(job)}, expected {expected}"
            for job, expected in self._load.expected.items()
            if job not in self._load.cancelled and outcomes.get(job) != expected
        ]

    async def _progress(self, phase: Phase) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._say(phase, "…")

    def _say(self, phase: Phase, what: str) -> None:
        live = self._world.live
        ended = sum(1 for job in live.due() if live.state.jobs.get(job) is None and job in live.taken_in)
        seconds = int(time.monotonic() - self._began)
        faults = sum(self._account.faults.values())
        print(
            f"{seconds // 60:3}:{seconds % 60:02} {phase.name:9} faults {faults:3}  "
            f"acknowledged {len(live.acknowledged):4}  ended {ended:4}  {what}",
            flush=True,
        )


def write_ledger(file: Path, stored: Sequence[bytes]) -> None:
    """What was stored, a line for each message: NATS's own disk goes with the campaign."""
    file.write_bytes(b"".join(message + b"\n" for message in stored))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own that can be full; None where nobody may mount one."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def on_one_server(
    directory: Path, seconds: float, chance: Random, account: Account, phases: Sequence[str] = ()
) -> None:
    """All phases, or the named ones, that one nats-server and one Redis are enough for, on one ledger."""
    with small_disk(directory / "up" / "nats") as disk:
        if disk is None:
            print("no right to mount a file system: a full disk is not tried", flush=True)
        platform = ChaosPlatform(directory / "up", sync=disk is not None)
        async with platform, opened(platform) as world, counted(world, platform, account, directory):
            redis = await world.live.redis_admin()
            faults, load = Faults(world, chance, redis, disk), Load(world, chance)
            campaign = Campaign(world, faults, load, chance, account)
            everything = (
                *faults.services,
                *faults.servers,
                *faults.cluster,
                *faults.accidents,
                *faults.clocks,
                *faults.stale,
            )
            shares: tuple[tuple[str, Sequence[Fault], float], ...] = (
                ("services", faults.services, 0.15),
                ("servers", faults.servers, 0.15),
                ("cluster", faults.cluster, 0.15),
                ("accidents", faults.accidents, 0.15),
                ("clocks", faults.clocks, 0.1),
                ("stale", faults.stale, 0.1),
                ("all kinds", everything, 0.2),
            )
            chosen = [each for each in shares if not phases or each[0] in phases]
            whole = sum(share for _, _, share in chosen)
            try:
                for name, kinds, share in chosen:
                    await campaign.run(Phase(name, kinds, seconds * share / whole))
            finally:
                await redis.aclose()


async def on_three_servers(directory: Path, seconds: float, chance: Random, account: Account) -> None:
    """A cluster of JetStream under the same load: a leader lost, a partition, a full restart."""
    with places(os.getpid() % 200) as where:
        platform = ThreeServerPlatform(directory / "three", where)
        async with platform, opened(platform) as world, counted(world, platform, account, directory):
            faults = ServerFaults(world, platform, chance)
            campaign = Campaign(world, faults, Load(world, chance), chance, account)
            await campaign.run(Phase("three", faults.kinds, seconds))


@asynccontextmanager
async def counted(world: World, platform: ChaosPlatform, account: Account, directory: Path) -> AsyncIterator[None]:
    """Adds to the account whatever came of the body; keeps the ledger of one that broke."""
    before = account.messages
    try:
        yield
    except Broken:
        write_ledger(directory / "ledger.jsonl", world.live.stored)
        raise
    finally:
        await world.live.look_at_ends()
        account.messages = before + world.live.state.n
        account.acknowledged += len(world.live.acknowledged)
        account.ended += sum(1 for job in world.live.due() if world.live.ends[job] == 1)
        for line in platform.ended:
            name, _, rest = line.partition(" ended with code ")
            if (code := rest.partition(";")[0]) not in ("-9", "-9 "):
                account.ends_by_themselves[f"{name} ended with code {code}"] += 1
