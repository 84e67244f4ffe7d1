"""What Redis is told of a ledger whose fold has just failed, before the loops beside the fold are cancelled."""

import asyncio

import pytest

from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.mirror import Mirror
from tessera.projection.settings import ProjectionSettings
from tessera.projection.views import Views
from tessera_schemas.ledger import LEDGER_MESSAGE, EpochOpened, FormatRaised
from tessera_schemas.shard.ledger_form import Head, chain_after
from tests.random_ledger import random_ledger
from tests.unit.projection.projection_world import World

STORED = random_ledger(7, 60).stored


def of_a_newer_version(stored: bytes) -> bytes:
    """The message after `stored`: its first record folds, its second names a format that nobody knows."""
    last = LEDGER_MESSAGE.validate_json(stored)
    opened = EpochOpened(kind="epoch_opened", epoch=last.epoch + 1, holder="newer")
    changes = {
        "n": last.n + 1,
        "prev": chain_after(stored),
        "epoch": opened.epoch,
        "facts": (),
        "orders": (),
        "records": (opened, FormatRaised(kind="format_raised", format=99)),
    }
    return last.model_copy(update=changes).to_bytes()


@pytest.mark.parametrize("changes_max", [10_000, 1], ids=["applied", "built anew"])
async def test_redis_is_told_nothing_of_a_message_that_is_folded_in_part(changes_max):
    """Its number beside the hash of the message before it halted every later version, too: the ledger was no other."""
    world, shard = World(), Shard()
    ports = world.start().ports
    views = Views(shard.state, 100, 1_000)
    mirror = Mirror(ports, ProjectionSettings(view_changes_max=changes_max), shard.state, views)
    caught_up = asyncio.Event()
    caught_up.set()
    running = asyncio.ensure_future(mirror.run(lambda: True, caught_up))
    world.tasks.append(running)
    for n, stored in enumerate([*STORED, of_a_newer_version(STORED[-1])], start=1):
        entry = decode_entry(Message("", n, stored))
        if n <= len(STORED):
            mirror.touch(views.moved_by(entry.message, lambda entry=entry: shard.fold(entry)))
            await world.clock.run(0.01)
        else:
            await world.clock.run(1)
            with pytest.raises(InvariantViolation, match="format 99"):
                shard.fold(entry)
            mirror.touch({("jobs", "one"): None, ("jobs", "another"): None})
    await world.clock.run(1)
    assert world.views.current.head == Head(len(STORED), chain_after(STORED[-1]))
    assert not running.done(), "the reason is the folder's to tell, and nobody halts us before it"
    assert "folded in part" in mirror.trouble
    await world.close()
