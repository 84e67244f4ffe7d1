"""What `slots` prints: within 80 columns, and with every idle GPU accounted for."""

from dataclasses import replace

from rich.cells import cell_len

from tessera.client.commands.shard.slots import lines
from tessera.client.views.overview import idle_lines, overview
from tessera.client.views.rendering import COLUMNS
from tessera.engine.explain.held_back import held_back
from tessera.engine.placement.free_slots import slots
from tessera.gateway.operations.models import WorkGroups
from tessera.projection.views import all_views
from tessera_schemas.cluster.device_layouts import DeviceTaint
from tessera_schemas.facts import DrainRequested, RunIdle
from tessera_schemas.job import Topology
from tessera_schemas.views import NodeView
from tests.builders import admitted, job_spec, node_seen
from tests.published_devices import DRIVER, claim, claiming, class_seen, layout_seen, offering, whole_gpus
from tests.rounds import Rounds
from tests.unit.scheduler.reserving_world import shard, submit


def printed(rounds: Rounds) -> list[str]:
    return lines([slots(rounds.state, "default")])


def test_sizes_come_first_and_then_where_the_idle_gpus_are() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 4}, placement="bestfit")
    rounds.submit("train", gpus=3)
    rounds.settle()
    rounds.commit(DrainRequested(kind="drain_requested", node="node-b"))
    assert printed(rounds) == [
        "POOL     GPUS  SLOTS  LARGEST GANG",
        "default     1      8  8 in one node",
        "default     2      4  4 in one node",
        "default     4      2  2 in one node",
        "default     8      1  1 in one node",
        "pool default: 9 of 12 GPUs are idle",
        "         1 on nodes that are not ready, or drained",
        "         8 can be had now: nothing waits",
    ]


def test_devices_of_each_class_are_told_with_what_is_taken_and_tainted_in_slots_and_in_top() -> None:
    layout = whole_gpus(4)
    taint = DeviceTaint(device=f"{DRIVER}/node-0/gpu-3", key="XidError", effect="NoSchedule")
    rounds = Rounds(nodes=[layout_seen(layout), class_seen(), offering("node-0", layout, 4)])
    rounds.commit(admitted("k1", job_spec(claiming(claim(count=2)))))
    rounds.settle()
    rounds.commit(offering("node-0", layout, 4, tainted=(taint,)))
    told = f"devices of {DRIVER}: 2 of 4 taken, 1 tainted"
    assert printed(rounds)[-1] == f"  {told}"
    views = [NodeView.from_bytes(each.value) for each in all_views(rounds.state) if each.view == "nodes"]
    assert told in overview(WorkGroups(as_of=1, tenants=(), reasons=()), views, (), 0)


def test_what_rules_keep_idle_is_told_with_the_way_out_in_slots_and_in_top() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 9))
    left = slots(ledger.state, "default")
    left = replace(left, held_back=held_back(ledger.state, "default", left.can_be_had))
    told = [" ".join(" ".join(made).split()) for made in (lines([left]), idle_lines([left]))]
    head = admitted("head").job_id
    kept = f"kept ahead for train ({head}) (way out: jobs whose time limit ends before it starts may have them)"
    assert f"1 can be had now: {kept}" in told[0]
    assert f"GPUs idle in pool default: 1, {kept}" in told[1]
    assert all(cell_len(line) <= COLUMNS for line in (*lines([left]), *idle_lines([left])))


def test_top_is_silent_about_gpus_for_which_nothing_waits() -> None:
    left = slots(Rounds().state, "default")
    assert idle_lines([replace(left, held_back=held_back(Rounds().state, "default", left.can_be_had))]) == []


def test_long_names_of_levels_give_way() -> None:
    level = "topology.example.com/" + "r" * 60
    rounds = Rounds(nodes=[node_seen("node-a", 8, labels={level: "r1"})])
    rounds.submit("gang", gpus=8, topology=Topology(level=level, required=True))
    rounds.settle()
    assert all(cell_len(line) <= COLUMNS for line in printed(rounds))


def test_gpus_that_are_held_and_not_used_stand_below_the_idle_ones() -> None:
    rounds = Rounds(idle="warn", idle_warn_seconds=60)
    for key in ("one", "two"):
        rounds.submit(key, gpus=2)
    rounds.settle()
    rounds.commit(RunIdle(kind="run_idle", run_id=rounds.run("one").run_id, idle_seconds=60))
    assert printed(rounds)[-1] == "         2 more are held, but 1 run uses none of theirs (warned)"
    rounds.commit(RunIdle(kind="run_idle", run_id=rounds.run("two").run_id, idle_seconds=60))
    assert printed(rounds)[-1] == "         4 more are held, but 2 runs use none of theirs (warned)"
    assert all(cell_len(line) <= COLUMNS for line in printed(rounds))
