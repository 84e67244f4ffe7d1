"""How many pods of a role could start now, by the gateway and by `tessera slots` with options."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import ShardOptions
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit
from tessera_schemas.cluster.device_layouts import DeviceTaint
from tests.builders import SHARD, admitted, job_spec
from tests.ledgers import Committed
from tests.published_devices import (
    DRIVER,
    PCIE_ROOT,
    claim,
    claiming,
    class_seen,
    gpus_with_nics,
    layout_seen,
    offering,
    selected,
)
from tests.unit.gateway.gateway_world import World

LAYOUT = gpus_with_nics(4)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """Two nodes of four GPUs and four cards: one GPU is taken by a job, one under a taint."""
    taint = DeviceTaint(device=f"{DRIVER}/node-1/gpu-3", key="XidError", effect="NoSchedule")
    ledger = Committed().begin(layout_seen(LAYOUT), class_seen("gpu", "gpu"), class_seen("net", "nic"))
    ledger.commit(selected(LAYOUT, 0x0F, "gpu"), selected(LAYOUT, 0xF0, "nic"))
    ledger.commit(offering("node-0", LAYOUT, 4), offering("node-1", LAYOUT, 4, tainted=(taint,)))
    ledger.commit(admitted("k1", job_spec(claiming(claim(count=1, device_class="gpu")))))
    ledger.start(admitted("k1").job_id, "k1")
    made = World(tmp_path, committed=ledger)
    await made.publish_what_is_committed()
    return made


async def printed(world: World, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[list[str]]:
    """The table that `tessera slots` prints for a tenant, without its last line."""
    token = world.token("lab")
    async with world.gateway():
        monkeypatch.setattr(ShardOptions, "find", lambda _: Where(SHARD, login=ApiLogin(world.url, token)))
        result = await asyncio.to_thread(CliRunner().invoke, app, ["slots", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()[:-1]]


async def test_slots_counts_pods_of_claimed_devices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = await printed(world, monkeypatch, "--device", "gpu:1")
    assert rows == [
        ["POOL", "ROLE", "PODS", "LARGEST", "GANG"],
        ["default", "worker", "6", "3", "in", "one", "node"],
    ]
    assert (await printed(world, monkeypatch, "--device", "gpu:2"))[1][2:4] == ["2", "1"]
    assert (await printed(world, monkeypatch, "--device", "net:4"))[1][2] == "2"
    assert (await printed(world, monkeypatch, "--device", "gpu+net:1", "--match", PCIE_ROOT))[1][2] == "6"
    assert (await printed(world, monkeypatch, "--device", "gpu:1", "--cpu", "40"))[1][2] == "2"
    assert (await printed(world, monkeypatch, "--device", "unheard-of:1"))[1][2] == "0"


async def test_slots_counts_pods_of_each_role_of_a_job_file(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        """
name: train
queue: research
roles:
  - {name: lead, resources: {cpu: 1, memory: 1Gi}, template: {image: busybox}}
  - {name: worker, replicas: 2, resources: {cpu: 30, memory: 1Gi}, template: {image: busybox}}
"""
    )
    rows = await printed(world, monkeypatch, "-f", str(file))
    assert [row[1:3] for row in rows[1:]] == [["lead", "127"], ["worker", "4"]]


def test_a_job_file_without_roles_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    monkeypatch.setattr(ShardOptions, "find", lambda _: Where(SHARD, login=ApiLogin("http://127.0.0.1:1", "none")))
    file.write_text("{name: train, queue: research}")
    refused = CliRunner().invoke(app, ["slots", "-f", str(file)])
    assert (refused.exit_code, refused.stderr) == (Exit.USAGE, f"error: {file}: has no list of roles\n")


async def test_without_a_pod_slots_tells_devices_by_class(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [" ".join(row) for row in await printed(world, monkeypatch)]
    assert rows[-2:] == ["devices of gpu: 1 of 8 taken, 1 tainted", "devices of net: 0 of 8 taken"]
