"""
The runbooks of docs/operations.md as an operator follows them after damage: their commands in order, word by word.

Each damage is done while everything is down, everything is started again and halts with the reason, and the page mends
it: inspect, keep the evidence, repair, restore into empty servers, reconcile, prove. The cluster and its pods live on.

Two commands cannot run as they are: `restore` gets the sizes of a machine with one server besides, and `apply` says
--yes, since nobody sits at the terminal. `kubectl` is one request to the simulated cluster.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from tessera.client.ledger.backup import Backup
from tessera.client.outcomes import Submitted
from tessera.kernel.errors import StartupError
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.ports import Message
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import SECONDS, TENANTS, Live, append, configuration, job, until_halted
from tests.e2e.platform_checks import assert_all_is_well
from tests.pages import commands_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "operations.md"
DAY_SECONDS = "86400"
KUBECTL = """#!{python}
import sys, urllib.request
delete, pod, _, namespace, *names = sys.argv[1:]
assert (delete, pod) == ("delete", "pod")
for name in names:
    request = urllib.request.Request("{url}/api/v1/namespaces/" + namespace + "/pods/" + name, method="DELETE")
    request.add_header("Authorization", "Bearer {token}")
    urllib.request.urlopen(request).read()
"""


class Servers(Platform):
    """A platform whose binder is patient with pods that the ledger does not explain, as the runbook has it."""

    def environment(self, identity: str, shard: str | None = None) -> dict[str, str]:
        return super().environment(identity, shard) | {"TESSERA_ORPHAN_SECONDS": DAY_SECONDS}

    async def stop_services(self) -> None:
        await asyncio.gather(*(self.stop(service) for service in self.services))

    async def start_services(self) -> None:
        await asyncio.gather(*(self.start(service) for service in self.services))

    @asynccontextmanager
    async def stopped(self, *names: str) -> AsyncIterator[None]:
        """Servers that are down meanwhile."""
        await asyncio.gather(*(self.stop(name) for name in names))
        try:
            yield
        finally:
            await asyncio.gather(*(self.start(name) for name in names))

    @asynccontextmanager
    async def trying(self) -> AsyncIterator[None]:
        """Every service started, although those that read the ledger will not be ready."""
        starting = [asyncio.create_task(self.start(service)) for service in self.services]
        try:
            yield
        finally:
            for task in starting:
                task.cancel()
            for service, done in zip(
                self.services, await asyncio.gather(*starting, return_exceptions=True), strict=True
            ):
                assert done is None or isinstance(done, asyncio.CancelledError | StartupError), done
                await self.stop(service)  # of who has started all the same

    @property
    def store(self) -> Path:
        return self.directory / "nats" / "store"

    @property
    def ledger(self) -> Path:
        (folder,) = self.store.glob("**/streams/LEDGER_main")
        return folder

    def put_redis_aside(self, to: Path) -> None:
        """Everything that a stopped Redis kept: where in its folder differs between its versions."""
        kept = self.directory / "redis"
        kept.rename(to)
        kept.mkdir()


OLD = 3
"""An early message of the ledger, which a snapshot covers."""


class Operator:
    """A shell where `tessera` and `kubectl` are on the path and `credentials/` is at hand."""

    def __init__(self, platform: Servers, home: Path) -> None:
        programs = home / "bin"
        programs.mkdir(parents=True)
        (home / "credentials").symlink_to(platform.credentials.root)
        token = platform.credentials.read(subjects.OPERATOR).cluster_token
        kubectl = KUBECTL.format(python=sys.executable, url=platform.cluster_url, token=token)
        tessera = (
            'case "$1 $2" in "ledger restore") set -- "$@" --replicas 1 --ledger-gib 1;; esac\n'
            'case "$1" in apply) set -- "$@" --yes;; esac\n'
            f'exec {sys.executable} -m tessera "$@"'
        )
        for name, text in (("kubectl", kubectl), ("tessera", f"#!/bin/sh\n{tessera}\n")):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.home = home
        self._environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TESSERA_HOME": str(platform.directory),
            "TESSERA_NATS_URL": platform.nats.url,
            "TESSERA_REDIS_URL": platform.redis.url,
            "TESSERA_CLUSTER_URL": platform.cluster_url,
            "TESSERA_CREDENTIALS_FILE": str(platform.credentials.file(subjects.OPERATOR)),
            "COLUMNS": "200",
        }

    async def __call__(self, block: str, code: int = 0) -> str:
        """What a block of the page prints, once it has ended with this exit code."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", block, cwd=self.home, env=self._environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == code, f"{block}\n{out.decode()}"
        return out.decode()


@dataclass
class Shard:
    """One cycle of damage and repair after the other, on the same cluster."""

    platform: Servers
    folder: Path
    cycles: int = 0
    kept: list[tuple[str, str]] = field(default_factory=list)
    last: Message = field(default_factory=lambda: Message("", 0, b""))
    as_stored: dict[int, bytes] = field(default_factory=dict)

    @property
    def older(self) -> Path:
        """A copy of NATS' data as it was before the last backup was a moment old."""
        return self.folder / f"older-{self.cycles}"

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Live]:
        """Everything runs; at the end everything is stopped, and nothing is watched any more."""
        body = None if self.cycles else configuration()
        async with Live.on(self.platform, body) as live:
            live.acknowledged += self.kept
            yield live
            await live.stop_looking()
            await self.platform.stop_services()
            last = await StreamLedger(live.bus, live.shard_name).tail()  # who stopped may have said something
            assert last is not None
            self.last = last
            for n in (OLD, last.seq):
                found = await live.bus.get(subjects.stream("LEDGER", live.shard_name), n)
                assert found is not None
                self.as_stored[n] = found.data


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shard]:
    directory = tmp_path_factory.mktemp("runbooks")
    async with Servers(directory / "up", tenants=TENANTS) as platform:
        yield Shard(platform, directory)


# -- the damages: each is done while the services are down, and gets what was stored


async def cut(shard: Shard, live: Live) -> None:
    """The file of the ledger lost its last bytes."""
    async with shard.platform.stopped("nats"):
        block = max(shard.platform.ledger.glob("msgs/*.blk"), key=lambda file: int(file.stem))
        os.truncate(block, block.stat().st_size - 100)


async def flip_a_byte_at_the_end(shard: Shard, live: Live) -> None:
    """NATS drops what its checksum refuses, and everything behind it."""
    await flip_a_byte(shard, shard.last.seq)


async def flip_an_old_byte(shard: Shard, live: Live) -> None:
    """In a message that a snapshot covers: nobody who starts reads it."""
    await flip_a_byte(shard, OLD)


async def flip_a_byte(shard: Shard, n: int) -> None:
    """In the middle of message `n` as it is stored, which may be compressed, in the one block that has it."""
    message = shard.as_stored[n]
    async with shard.platform.stopped("nats"):
        (block,) = (file for file in shard.platform.ledger.glob("msgs/*.blk") if message in file.read_bytes())
        data = bytearray(block.read_bytes())
        data[data.find(message) + len(message) // 2] ^= 0x01
        block.write_bytes(data)


async def restore_older_streams(shard: Shard, live: Live) -> None:
    """All of NATS as it was before; Redis is ahead."""
    async with shard.platform.stopped("nats"):
        shutil.rmtree(shard.platform.store)
        shutil.copytree(shard.older, shard.platform.store)


async def restore_older_ledger(shard: Shard, live: Live) -> None:
    """The ledger as it was before, and Redis is new; the public events are ahead."""
    async with shard.platform.stopped("nats", "redis"):
        folder = shard.platform.ledger
        shutil.rmtree(folder)
        shutil.copytree(shard.older / folder.relative_to(shard.platform.store), folder)
        shard.platform.put_redis_aside(shard.folder / f"older-redis-{shard.cycles}")


async def fork(shard: Shard, live: Live) -> None:
    """Somebody wrote a message that continues another one."""
    await append(live, [changed(shard, 1, prev="f" * 64)])


async def leave_a_gap(shard: Shard, live: Live) -> None:
    """A message is missing before the last."""
    await append(live, [changed(shard, 2)])


async def write_nonsense(shard: Shard, live: Live) -> None:
    """Bytes that are no ledger message."""
    await append(live, [b"not a message"])


def changed(shard: Shard, later: int, **more: object) -> bytes:
    """Body of a message that says to come so many after the last one."""
    last = shard.last
    return json.dumps(json.loads(last.data) | {"n": last.seq + later, "tx": "forged-1", "records": []} | more).encode()


Damage = Callable[[Shard, Live], Awaitable[None]]
LOST_END = "it lost its end"
SERVICES_THAT_LOOK = tuple(service for service in SERVICES if service != "notifier")
"""Who looks whether the ledger has its end: everybody but the notifier, who reads public events alone."""
READERS = ("scheduler", "queueing", "binder", "reclamation", "projection")
"""Who follows the ledger record by record."""
EVERY_KIND = pytest.mark.nightly("all kinds of damage, a minute each; `make damage` runs every one")
"""Of damage that is found and mended as another kind here is."""


@pytest.mark.parametrize(
    ("damage", "halts", "names"),
    [
        (cut, LOST_END, "torn tail"),
        pytest.param(flip_a_byte_at_the_end, LOST_END, "torn tail", marks=EVERY_KIND),
        pytest.param(flip_an_old_byte, "", "gap: after 2 comes 4", marks=EVERY_KIND),
        pytest.param(restore_older_streams, LOST_END, "Redis knows message", marks=EVERY_KIND),
        (restore_older_ledger, LOST_END, "EVENTS knows message"),
        pytest.param(fork, "fork", "fork: message", marks=EVERY_KIND),
        pytest.param(leave_a_gap, "calls itself", "gap: after", marks=EVERY_KIND),
        pytest.param(write_nonsense, "cannot be read", "is no ledger message", marks=EVERY_KIND),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
async def test_damage_halts_who_starts_and_the_page_mends_it(
    shard: Shard, damage: Damage, halts: str, names: str
) -> None:
    """`halts`: in everybody's reason; "" for damage that only who reads the whole ledger meets."""
    operator = Operator(shard.platform, shard.folder / f"operator-{shard.cycles}")
    copy, prove = commands_of(PAGE, "Backups")
    async with shard.working() as live:
        lasts = await live.submit(job("lasts", gpus=1, seconds=600), key=f"lasts-{shard.cycles}")
        await live.until_phase(lasts.job_id, "running")
        await operator(copy)
        async with shard.platform.stopped("nats"):
            shutil.copytree(shard.platform.store, shard.older)
        late = await live.submit(job("late", gpus=1, seconds=600), key=f"late-{shard.cycles}")
        await live.until_phase(late.job_id, "running")
        left = await live.submit(job("left", gpus=1, seconds=600), key=f"left-{shard.cycles}")
        await live.until_phase(left.job_id, "running")
        late_pods = await pods_of(live, late)
        ended = await live.submit(job("ended", gpus=1), key=f"ended-{shard.cycles}")
        await live.until_ended(ended.job_id)
    await operator(prove)
    await damage(shard, live)
    if halts:
        async with shard.platform.trying():
            reasons = await asyncio.gather(
                *(until_halted(live, service) for service in (SERVICES_THAT_LOOK if halts == LOST_END else READERS))
            )
        assert all(halts in reason for reason in reasons), reasons

    inspect, keep, verify = commands_of(PAGE, "A halted shard")
    assert names in await operator(inspect, 1)
    await operator(keep, 1)
    assert "NOT ok" in await operator(verify, 1)
    look, write, prove = commands_of(PAGE, "Repair a ledger")
    assert "nothing was written" in await operator(look, 1)
    await operator(write, 1)
    await operator(prove)
    await renew_servers(shard)
    await follow_restore(shard, operator)
    async with Live.on(shard.platform) as live:
        again = await live.submit(job("late", gpus=1, seconds=600), key=f"late-{shard.cycles}")
        assert again.job_id == late.job_id
        await live.until_phase(late.job_id, "running")
        assert await pods_of(live, late) == late_pods, "what is sent again is taken over where it runs"
    await follow_reconcile(operator, [] if knows(operator.home / "repaired", left) else [left])
    shard.cycles += 1

    async with Live.on(shard.platform) as live:
        await live.until_phase(lasts.job_id, "running")
        assert live.state.runs.get(f"{lasts.job_id}-1") is not None, "what the backup knows runs on"
        for each, key in ((left, "left"), (ended, "ended")):
            again = await live.submit(
                job(key, gpus=1, seconds=600 if key == "left" else 0.1), key=f"{key}-{shard.cycles - 1}"
            )
            assert again.job_id == each.job_id
        await live.until_phase(left.job_id, "running")
        await live.until_ended(ended.job_id)
        for each in (lasts, late, left):
            assert (await live.command("cancel", each.job_id, "--as", "lab")).code == 0
        live.acknowledged += [("lab", f"lasts-{cycle}") for cycle in range(shard.cycles)]
        await assert_all_is_well(live)
        assert (await live.command("replay", "--verify")).code == 0


async def pods_of(live: Live, job: Submitted) -> list[str]:
    """UIDs of the job's pods."""
    cluster = live.cluster()
    try:
        pods, _ = await cluster.list("pods")
    finally:
        await cluster.close()
    return sorted(pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"].startswith(job.job_id))


def knows(backup: Path, job: Submitted) -> bool:
    """Whether a job is in what could be saved."""
    return any(job.job_id.encode() in data for _, data in Backup.read(backup).messages())


async def renew_servers(shard: Shard) -> None:
    """NATS and Redis anew, empty, on the ports that clients know; what they held is put aside."""
    async with shard.platform.stopped("nats", "redis"):
        aside = shard.folder / f"evidence-{shard.cycles}"
        aside.mkdir()
        shard.platform.store.rename(aside / "nats")
        shard.platform.put_redis_aside(aside / "redis")


async def follow_restore(shard: Shard, operator: Operator) -> None:
    restore, configure = commands_of(PAGE, "Restore a ledger")
    said = await operator(restore.replace(" restore backup ", " restore repaired "))
    assert "restored shard main up to" in said
    await shard.platform.start_services()
    said = await operator(configure)
    assert "subscriber lab_everything" in said


async def follow_reconcile(operator: Operator, lost: Sequence[Submitted]) -> None:
    reconcile, prove = commands_of(PAGE, "Reconcile the cluster")
    if lost:
        said = await operator(reconcile, 1)
        assert all(f"{each.job_id}-1 (left of lab): the ledger does not know the job" in said for each in lost)
        proposed = [line for line in said.splitlines() if line.startswith("  kubectl ")]
        assert len(proposed) >= len(lost)
        await operator("\n".join(proposed))
    await until_agreed(operator, reconcile)
    await operator(prove)


async def until_agreed(operator: Operator, reconcile: str) -> None:
    for _ in range(60):
        with suppress(AssertionError):
            await operator(reconcile)
            return
        await asyncio.sleep(0.5)
    await operator(reconcile)
