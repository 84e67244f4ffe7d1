"""What `slots` prints: within 80 columns, and with every idle GPU accounted for."""

from rich.cells import cell_len

from tessera.client.commands.shard.slots import lines
from tessera.client.views.rendering import COLUMNS
from tessera.engine.placement.free_slots import slots
from tessera_schemas.facts import DrainRequested, RunIdle
from tessera_schemas.job import Topology
from tests.builders import node_seen
from tests.rounds import Rounds


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
