"""Who is blocked first is not delayed, and who delays nobody passes: on a platform, under what `config init` writes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.e2e.live import SMALL, TENANTS, Live, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = 86_400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Four nodes of eight GPUs under what `config init` writes for them."""
    home: Path = tmp_path_factory.mktemp("platform")
    async with Live.at(home, layout=SMALL) as live:
        await live.until_nodes_are_known()
        file = home / "config.yaml"
        tenants = [word for name in TENANTS for word in ("--tenant", name)]
        for words in (("config", "init", "-f", str(file), *tenants), ("apply", "--yes", "-f", str(file))):
            said = await live.command(*words)
            assert said.code == 0, said.err
        yield live


async def test_short_jobs_run_beside_a_head_for_which_room_is_kept(live: Live) -> None:
    busy = [await live.submit(job(f"busy-{n}", gpus=5, seconds=600, time_limit_seconds=DAY)) for n in range(4)]
    for each in busy:
        await live.until_phase(each.job_id, "running")
    head = await live.submit(job("head", gpus=7, replicas=2, seconds=600, time_limit_seconds=DAY))
    short = [await live.submit(job(f"short-{n}", seconds=0.5, time_limit_seconds=60)) for n in range(4)]
    await live.until_ended(*(each.job_id for each in short))
    assert live.phase(head.job_id) == "queued"
    said = await live.command("explain", "head")
    assert "room is kept" in said.out, said.out
    for each in (head, *busy):
        await live.clients["lab"].cancel(each.job_id)
    await live.until_idle()


async def test_a_gang_of_the_whole_pool_is_passed_by_nobody_who_would_delay_it(live: Live) -> None:
    first = [await live.submit(job(f"first-{n}", gpus=8, seconds=2 + n, time_limit_seconds=20)) for n in range(4)]
    for each in first:
        await live.until_phase(each.job_id, "running", "succeeded")
    wide = await live.submit(job("wide", gpus=8, replicas=4, seconds=1, time_limit_seconds=60))
    later = [await live.submit(job(f"later-{n}", gpus=8, seconds=1, time_limit_seconds=3_600)) for n in range(6)]
    await live.until_ended(wide.job_id, *(each.job_id for each in later))
    records = (record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records)
    began = {record.job_id: n for n, record in enumerate(records) if record.kind == "allocated"}
    assert all(began[wide.job_id] < began[each.job_id] for each in later)
    await live.until_idle()
    await assert_all_is_well(live)
