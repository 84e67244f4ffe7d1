"""The examples in JavaScript, word for word: a submit against a whole shard, a durable subscriber's events."""

import asyncio
from pathlib import Path

import pytest

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.kernel.ports import Outgoing
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tests.e2e.live import Live, configuration
from tests.npm import NEEDS_NODE, NODE, SECONDS, check_lock, installed

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nats-js"

pytestmark = NEEDS_NODE


async def said(*command: str, where: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=where,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return installed(EXAMPLE, tmp_path)


async def test_a_program_in_javascript_submits_and_sees_the_jobs_events(example: Path, tmp_path: Path) -> None:
    async with Live.at(tmp_path / "up", configuration()) as live:
        credential = str(live.platform.credentials.file("lab"))
        command = (str(NODE), "submit.mjs", credential, live.platform.nats.url, "from-node-1")
        code, text = await said(*command, where=example)
        live.acknowledged.append(("lab", "from-node-1"))
        assert code == 0, text
        job_id, *kinds = [line.split()[-1] for line in text.splitlines()]
        assert kinds[-1] == "job.succeeded.v1"
        assert "job.allocated.v1" in kinds
        await live.until_ended(text.split()[0])
        assert job_id == "admitted"
        again, text = await said(*command[:-1], "", where=example)
        assert again != 0
        assert "refused" in text
        assert (await live.command("ls", "-o", "json")).json["items"][0]["name"] == "from-node"


async def test_a_program_in_javascript_opens_its_own_durable_subscriber_and_nobody_elses(
    example: Path, tmp_path: Path
) -> None:
    async with Platform(tmp_path / "up", services=[], cluster=False, tenants=["lab", "spy"]) as platform:
        for tenant in ("lab", "spy"):
            await platform.add_tenant(tenant, {"billing": ()})
        place = find(platform.directory)
        event = b'{"id": "1-0", "type": "io.tessera.job.admitted.v1", "data": {"job_id": "j1"}}'
        async with open_bus(place, place.identity("projection")) as projection:
            await projection.publish(Outgoing(subjects.event("main", "lab", "default", "job.admitted.v1"), event))
        (example / "spy.mjs").write_text(
            (example / "subscribe.mjs").read_text().replace("${tenant}_${name}", "lab_billing")
        )

        async def read(script: str, tenant: str) -> tuple[int, str]:
            credential = str(platform.credentials.file(tenant))
            return await said(str(NODE), script, credential, platform.nats.url, "billing", "1", where=example)

        code, text = await read("subscribe.mjs", "lab")
        assert (code, text) == (0, "1-0 job.admitted.v1 j1\n"), text
        code, text = await read("spy.mjs", "spy")
        assert code != 0
        assert "permissions violation" in text.lower()
        assert "job.admitted" not in text


def test_the_lock_names_no_registry() -> None:
    check_lock(EXAMPLE)
