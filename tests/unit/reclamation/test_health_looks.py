"""The health of nodes from look to ledger: said where it changed, damped, level-triggered; and what becomes of runs."""

from collections.abc import Mapping
from typing import Any

import pytest

from tessera.kernel.errors import Transient
from tessera_schemas.cluster.health import HealthAction, HealthCause, HealthPolicy
from tessera_schemas.facts import HealthSeen
from tests.unit.binder.cluster_world import World, train

XID, CLOCKS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
PERIOD, GONE = 30, 300
POLICY = HealthPolicy(out_percent=50)
A, B = "node-a", "node-b"


class Exporters:
    """The exporters of all nodes: one value of each metric of GPU-1 by node; nodes without one do not answer."""

    def __init__(self, *nodes: str) -> None:
        self.shown: dict[str, dict[str, int]] = {node: {XID: 0, CLOCKS: 0} for node in nodes or (A, B)}
        self.away = False

    async def look(self) -> Mapping[str, list[tuple[str, dict[str, str], str]]]:
        if self.away:
            raise Transient("away")
        return {
            node: [(metric, {"UUID": f"GPU-of-{node}"}, str(value)) for metric, value in values.items()]
            for node, values in self.shown.items()
        }


def world(exporters: Exporters | None = None, policy: HealthPolicy | None = POLICY, **more: Any) -> World:
    settings = {"utilisation_seconds": PERIOD, "health_gone_seconds": GONE}
    return World(counters=exporters, health=policy, **settings, **more)


def said(w: World, node: str = A) -> list[list[HealthCause]]:
    facts: list[HealthSeen] = [fact for fact in w.said("health_seen") if fact.node == node]
    return [[each.cause for each in fact.ailments] for fact in facts]


async def test_a_gpu_that_falls_off_the_bus_takes_its_node_out_and_the_gang_goes_on_elsewhere() -> None:
    exporters = Exporters()
    async with world(exporters) as w:
        job = await w.submit(spec=train(seconds=100_000))
        (node,) = w.nodes_of(job)
        await w.run(2 * PERIOD, turn=5)
        exporters.shown[node][XID] = 79
        await w.run(3 * PERIOD, turn=5)
        assert said(w, node) == [[HealthCause.GPU_LOST]]
        (known,) = w.state.health.get(node).ailments
        assert (known.source, known.ailment.device) == ("dcgm", f"GPU-of-{node}")
        assert known.ailment.evidence == "XID 79: GPU has fallen off the bus"
        assert w.job(job).attempt == 2
        assert w.nodes_of(job) == {A, B} - {node}


async def test_what_was_wrong_is_over_once_the_exporter_begins_anew_and_a_while_has_passed() -> None:
    exporters = Exporters()
    async with world(exporters) as w:
        exporters.shown[A][XID] = 79
        await w.run(3 * PERIOD, turn=5)
        exporters.shown[A][XID] = 0
        await w.run(GONE - 2 * PERIOD, turn=5)
        assert w.state.health.get(A) is not None
        await w.run(4 * PERIOD, turn=5)
        assert w.state.health.get(A) is None
        assert said(w) == [[HealthCause.GPU_LOST], []]


async def test_a_fault_that_flaps_from_look_to_look_is_said_once() -> None:
    exporters = Exporters()
    async with world(exporters) as w:
        for turn in range(40):
            exporters.shown[A][CLOCKS] = 0x40 * (turn % 2)
            await w.run(PERIOD, turn=PERIOD)
        assert said(w) == [[HealthCause.GPU_THROTTLED]]


async def test_an_exporter_that_is_away_says_neither_sick_nor_well() -> None:
    exporters = Exporters()
    async with world(exporters) as w:
        exporters.shown[A][XID] = 79
        await w.run(2 * PERIOD, turn=5)
        exporters.away = True
        await w.run(3 * GONE, turn=50)
        exporters.away = False
        exporters.shown.pop(A)  # the others answer
        await w.run(3 * GONE, turn=50)
        assert said(w) == [[HealthCause.GPU_LOST]]
        assert w.state.health.get(A) is not None


async def test_a_new_process_goes_on_from_what_the_ledger_knows() -> None:
    exporters = Exporters()
    async with world(exporters) as w:
        exporters.shown[A][XID] = exporters.shown[B][XID] = 79
        await w.run(2 * PERIOD, turn=5)
        await w.stop("reclamation")
        exporters.shown[B][XID] = 0
        w.start_reclamation()
        await w.run(GONE + 3 * PERIOD, turn=5)
        assert said(w) == [[HealthCause.GPU_LOST]]
        assert said(w, B) == [[HealthCause.GPU_LOST], []]


async def test_without_a_policy_nobody_looks_and_an_ignored_cause_is_not_said() -> None:
    exporters = Exporters()
    exporters.shown[A][XID] = 79
    async with world(exporters, policy=None) as w:
        await w.run(5 * PERIOD, turn=5)
        assert w.said("health_seen") == []
    async with world(exporters, HealthPolicy(actions={HealthCause.GPU_LOST: HealthAction.IGNORE})) as w:
        await w.run(5 * PERIOD, turn=5)
        assert w.said("health_seen") == []


async def test_an_exporter_that_lies_about_every_node_takes_out_no_more_than_the_policy_allows() -> None:
    names = tuple(f"node-{letter}" for letter in "abcdefghij")
    exporters = Exporters(*names)
    async with world(exporters, HealthPolicy(out_percent=20), nodes=names) as w:
        jobs = [await w.submit(key, train(seconds=100_000)) for key in ("k1", "k2", "k3")]
        for name in names:
            exporters.shown[name][XID] = 79
        await w.run(5 * PERIOD, turn=5)
        held_back = [name for name in names if w.state.health.get(name).held_back]
        assert len(held_back) == 8
        assert sum(drain.by == "health" for _, drain in w.state.drains.items()) == 2
        assert all(w.job(job).phase == "running" for job in jobs)


async def test_a_condition_of_the_node_is_said_when_it_lasts() -> None:
    async with world() as w:
        await w.run(PERIOD, turn=5)
        w.core.set_condition(A, "KernelDeadlock", "True")
        await w.run(2 * PERIOD, turn=5)
        assert said(w) == []
        await w.run(2 * PERIOD, turn=5)
        assert said(w) == [[HealthCause.NODE_CONDITION]]


@pytest.mark.parametrize(("state", "attempt"), [("quarantined", 1), ("draining", 2)])
async def test_runs_leave_a_node_that_nvsentinel_drains_and_stay_on_one_that_it_quarantines(
    state: str, attempt: int
) -> None:
    async with world() as w:
        job = await w.submit(spec=train(seconds=100_000))
        (node,) = w.nodes_of(job)
        w.core.patch("nodes", "", node, {"metadata": {"labels": {"dgxc.nvidia.com/nvsentinel-state": state}}})
        await w.run(3 * PERIOD, turn=5)
        assert w.state.drains.get(node).by == "health"
        assert w.job(job).attempt == attempt
