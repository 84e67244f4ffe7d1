"""
A ledger that was tampered with: a replay refuses it, and services that meet it halt, up and red, until somebody looks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera_schemas.ledger import GENESIS, LEDGER_MESSAGE
from tessera_schemas.shard.ledger_form import chain_hash
from tests.e2e.live import Live, Said, append, job, until_halted
from tests.e2e.platform_checks import assert_all_is_well
from tests.ledgers import rechain

pytestmark = pytest.mark.asyncio(loop_scope="module")

READERS = ("scheduler", "queueing", "binder", "reclamation", "projection")


async def ran(live: Live) -> list[bytes]:
    """A few jobs through their lives, and the ledger as the command line exports it."""
    done = [await live.submit(job(f"job-{number}", gpus=1, replicas=2)) for number in range(3)]
    await live.until_ended(*(each.job_id for each in done))
    await assert_all_is_well(live)
    file = live.home / "ledger.jsonl"
    said = await live.command("ledger", "inspect", "--export", str(file), "--last", "1")
    assert said.code == 0
    first, *stored, last = file.read_bytes().splitlines()
    end = f"{live.shard.state.n}:{live.shard.state.chain}"
    assert (json.loads(first), json.loads(last)) == ({"export": {"shard": "main"}}, {"head": end})
    return stored


async def verified(live: Live, stored: list[bytes]) -> Said:
    file = live.home / "changed.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in stored))
    return await live.command("replay", "--verify", "--from-file", str(file), "-o", "json")


def first(stored: list[bytes], kind: str) -> int:
    """The n of the first message with a record of this kind."""
    return next(n for n, data in enumerate(stored, start=1) if f'"kind":"{kind}"'.encode() in data)


def other_devices(message: dict[str, Any]) -> None:
    """A free one on the same node, so that only whoever decides again can tell."""
    record = next(record for record in message["records"] if record["kind"] == "allocated")
    record["placements"][0]["devices"] = [7]


async def test_an_exported_ledger_is_the_stored_one_and_replays(live: Live) -> None:
    stored = await ran(live)
    assert stored == live.stored
    said = await verified(live, stored)
    assert (said.code, said.json["ok"], said.json["recomputed"]) == (0, True, len(stored))


async def test_one_placement_altered_and_every_hash_and_checkpoint_done_again_is_refused(live: Live) -> None:
    stored = await ran(live)
    at = first(stored, "allocated")
    changed = rechain(stored, at, other_devices)
    assert chained(changed)
    assert changed[at:] != stored[at:]  # the hashes that follow are others, too
    said = await verified(live, changed)
    assert (said.code, said.json["ok"]) == (1, False)
    assert any(f"message {at}: record " in finding and "[7]" in finding for finding in said.json["findings"])


def chained(stored: list[bytes]) -> bool:
    prev = GENESIS
    for data in stored:
        if LEDGER_MESSAGE.validate_json(data).prev != prev:
            return False
        prev = chain_hash(prev, data)
    return True


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda stored: [*stored[:3], *stored[4:]], "calls itself"),
        (lambda stored: [*stored[:4], *rechain(stored, 2, lambda m: m.update(tx="another-tx"))[4:]], "fork"),
        (lambda stored: [*stored[:4], stored[4], *stored[4:]], "calls itself"),
        (lambda stored: [*stored[:4], stored[4].replace(b'"v":1', b'"v":2', 1), *stored[5:]], "cannot be read"),
    ],
    ids=["gap", "fork", "message twice", "version of the future"],
)
async def test_a_ledger_that_does_not_hang_together_is_refused(
    live: Live, change: Callable[[list[bytes]], list[bytes]], word: str
) -> None:
    said = await verified(live, change(list(live.stored)))
    assert (said.code, said.json["ok"]) == (1, False)
    assert word in said.json["findings"][-1]


async def test_a_ledger_altered_without_its_checkpoints_halts_whoever_folds_it(live: Live, tmp_path: Path) -> None:
    await ran(live)
    epoch = live.state.epoch
    await live.platform.restart("scheduler")  # an epoch begins with a checkpoint
    await live.until(lambda state: state.epoch == epoch + 1, "there is a checkpoint")
    stored = list(live.stored)
    changed = chain_done_again(stored, first(stored, "allocated"), other_devices)
    assert chained(changed)
    async with Live.at(tmp_path / "other", services=()) as other:
        await other.stop_looking()
        await append(other, changed)
        await other.platform._init()  # FACTS goes on behind what this ledger has taken in
        for service in ("queueing", "projection", "scheduler"):
            async with other.another(service) as instance:
                assert "hashes to" in await instance.until_halted()
    await assert_all_is_well(live)


def chain_done_again(stored: list[bytes], at: int, change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """As `rechain`, but the checkpoints stay as they were: the chain is whole, and only the state's hash can tell."""
    prev, made = GENESIS, list[bytes]()
    for n, data in enumerate(stored, start=1):
        message = json.loads(data)
        if n == at:
            change(message)
        made.append(json.dumps(message | {"prev": prev}, separators=(",", ":")).encode())
        prev = chain_hash(prev, made[-1])
    return made


async def test_a_forked_ledger_halts_all_who_read_it_and_they_stay_up_and_red(live: Live) -> None:
    await assert_all_is_well(live)
    stored, pids = list(live.stored), {name: live.platform.pid(name) for name in READERS}
    await live.stop_looking()
    forged = json.loads(stored[-1]) | {"n": len(stored) + 1, "tx": "forged-1", "prev": "f" * 64, "records": []}
    await append(live, [json.dumps(forged).encode()])
    await live.clients["lab"].submit(job("never"))  # something to decide, so that the committer finds out, too
    for service in READERS:
        assert "fork" in await until_halted(live, service)
    async with live.another("scheduler") as late:
        assert "fork" in await late.until_halted()
    assert {name: live.platform.pid(name) for name in READERS} == pids
    said = await live.command("ledger", "inspect", "--last", "1")
    assert said.code == 1
    assert f"the chain holds up to {len(stored)}; fork: message {len(stored) + 1}" in said.err
    assert (await live.command("replay", "--verify")).code == 1
    assert (await live.command("explain", "job-0")).code != 0  # books that contradict themselves explain nothing
