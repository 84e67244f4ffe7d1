"""Devices that drivers publish, on real servers: `sbatch --gres`, who has which of them, and the account."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tessera_schemas.cluster.device_claims import GresClass
from tests.e2e.live import SECONDS, SMALL, Live, configuration
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio

NICS, CARDS = "nic.example.com", 4


async def publish_cards(live: Live, nodes: list[str]) -> None:
    """A driver of network cards publishes four on each node, and the cluster has a class of them."""
    selector = {"cel": {"expression": f'device.driver == "{NICS}"'}}
    made: list[dict[str, Any]] = [
        {"kind": "DeviceClass", "metadata": {"name": NICS}, "spec": {"selectors": [selector]}}
    ]
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"card-{at}"} for at in range(CARDS)]
        spec = {"driver": NICS, "nodeName": node, "pool": pool, "devices": devices}
        made.append({"kind": "ResourceSlice", "metadata": {"name": f"{node}-nics"}, "spec": spec})
    cluster = live.cluster()
    try:
        for each in made:
            await cluster.create_object("", {"apiVersion": "resource.k8s.io/v1", **each})
    finally:
        await cluster.close()


async def until_said(live: Live, expected: str, *words: str) -> None:
    """Waits until a command prints this, each stretch of blanks as one: views come a moment behind the ledger."""
    async with asyncio.timeout(SECONDS):
        while True:
            done = await live.command(*words)
            assert done.code == 0, done
            out = "\n".join(" ".join(line.split()) for line in done.out.splitlines())
            if expected in out:
                return
            print("$ tessera", *words, f"\n{done.out}")  # shown where the time is over
            await asyncio.sleep(0.5)


async def test_a_script_asks_for_cards_by_gres_and_everybody_shows_which_it_has(tmp_path: Path) -> None:
    body = configuration(gres=(GresClass(name="nic", device_class=NICS),))
    async with Live.at(tmp_path, body, layout=SMALL) as live:
        nodes = sorted(name for name, _ in live.state.nodes.items())
        await publish_cards(live, nodes)

        def knows(state: Any) -> bool:
            return all(node.device_classes == ((NICS, CARDS, 0, 0),) for _, node in state.nodes.items())

        await live.until(knows, "the ledger knows the cards of every node")
        await until_said(live, f"default* {len(nodes)} gpu:H100:8,nic:4", "sinfo", "-o", "%P %D %G %N")
        lasting = ("--export=ALL,SIMULATE_SECONDS=600", "--container-image", "train:1", "--wrap=true")
        sent = await live.command("sbatch", "--parsable", "--as", "lab", "-J", "cards", *SENT, *lasting)
        assert sent.code == 0, sent
        live.acknowledged.append(("lab", "cards"))
        await live.until_folded()
        number = sent.out.strip()
        job = live.id_of(number)
        await live.until_phase(job, "running")
        run = live.state.runs.get(f"{job}-1")
        drawn = [(place.node, device) for place in run.places for device in place.drawn]
        assert len({(node, device.id) for node, device in drawn}) == 4
        assert all((device.driver, device.pool) == (NICS, node) for node, device in drawn)
        node, device = drawn[0]
        on_node = sum(place == node for place, _ in drawn)
        for expected, words in (
            (f"{number} R gres/nic:2", ("squeue", "-o", "%i %t %b")),
            (",gres/nic=4", ("squeue", "-O", "JobID,tres-alloc:60")),
            (",gres/nic=4", ("sacct", "-o", "JobID,AllocTRES%60")),
            ("TresPerNode=gres/nic:2", ("scontrol", "show", "job", number)),
            (f"Gres=gpu:H100:8,nic:4 GresUsed=gpu:H100:0,nic:{on_node}", ("scontrol", "show", "node", node)),
            (f",gres/nic={CARDS * len(nodes)}", ("scontrol", "show", "partition")),
            (f"{NICS}: 4, {on_node} taken", ("nodes", "-o", "wide")),
            (f"devices 4 of {NICS}\npod 0: {NICS}: {device.id}, ", ("get", "cards")),
            (f"devices of {NICS}: 4 of {CARDS * len(nodes)} taken", ("top", "--once")),
            (f"devices of {NICS}: 4 of {CARDS * len(nodes)} taken", ("slots",)),
            (f"default worker {CARDS * len(nodes) // 2 - 2} 2 in one node", ("slots", "--device", f"{NICS}:2")),
        ):
            await until_said(live, expected, *words)
        assert (await live.command("scancel", number)).code == 0
        await live.until_ended(job)
        await live.until_idle()
        await until_said(live, "(sum) ", "report", "--resource", f"class:{NICS}")
        await until_said(live, "GresUsed=gpu:H100:0,nic:0", "scontrol", "show", "node", node)
        whole = await live.command("report", "--from-ledger", "--resource", f"class:{NICS}", "-o", "json")
        (item,) = whole.json["items"]
        assert (item["name"], item["sum"], whole.json["unit"]) == ("lab", whole.json["sum"], "device_ms")
        assert item["causes"]["used"] > 0
        await assert_all_is_well(live)


SENT = ("--key", "cards", "--gres=nic:2", "--nodes=2")
