"""What `slots` prints: within 80 columns, and with every idle GPU accounted for."""

from rich.cells import cell_len

from tessera.client.commands.slots import lines
from tessera.client.rendering import COLUMNS
from tessera.engine.slots import slots
from tessera_schemas.facts import DrainRequested
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
        "         8 can be had now",
    ]


def test_long_names_of_levels_give_way() -> None:
    level = "topology.example.com/" + "r" * 60
    rounds = Rounds(nodes=[node_seen("node-a", 8, labels={level: "r1"})])
    rounds.submit("gang", gpus=8, topology=Topology(level=level, required=True))
    rounds.settle()
    assert all(cell_len(line) <= COLUMNS for line in printed(rounds))
