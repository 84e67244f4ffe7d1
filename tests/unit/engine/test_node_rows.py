"""A placement costs what changed, and not the number of nodes: counted, not timed."""

from dataclasses import replace

from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.protocol import BEST_FIT, BestFit
from tessera_schemas.reasons import Reason
from tests.unit.engine.engine_builders import node


class Counting(BestFit):
    """Best fit that counts how many nodes it was asked about."""

    def __init__(self) -> None:
        self.judged = 0

    def score(self, need: Need, node: Node) -> int:
        self.judged += 1
        return super().score(need, node)


def gang(gpus: int, pods: int = 1, **more: object) -> Gang:
    need = Need(cpu_milli=1000, memory_bytes=2**20, gpus=gpus, **more)  # type: ignore[arg-type]
    return gang_of((RoleNeed("w", pods, need),))


def racks(count: int) -> list[Node]:
    return [node(f"n{at:03}", labels={"host": f"n{at:03}", "rack": f"r{at % 4}"}) for at in range(count)]


def nodes_of(verdict: tuple[object, ...] | Reason) -> list[str]:
    assert not isinstance(verdict, Reason)
    return [placement.node for placement in verdict]  # type: ignore[attr-defined]


def test_a_later_placement_judges_only_the_nodes_that_changed() -> None:
    scoring = Counting()
    room = FreeCapacity(racks(200), scoring=scoring)
    assert nodes_of(room.place(gang(4))) == ["n000"]
    first = scoring.judged
    placed = [nodes_of(room.place(gang(4)))[0] for _ in range(5)]
    assert placed == ["n000", "n001", "n001", "n002", "n002"]
    assert scoring.judged - first <= 2 * 5  # the best one, and the node that was taken before; full ones have no room


def test_nodes_differ_by_a_label_once_somebody_asks_for_it() -> None:
    room = FreeCapacity(racks(200), scoring=BEST_FIT)
    assert nodes_of(room.place(gang(8, node_selector=(("rack", "r2"),)))) == ["n002"]
    assert nodes_of(room.place(gang(8, node_selector=(("rack", "r3"),)))) == ["n003"]
    assert nodes_of(room.place(gang(8))) == ["n000"]


def test_a_wide_gang_takes_the_equal_nodes_by_name() -> None:
    room = FreeCapacity(racks(20), scoring=BEST_FIT)
    assert nodes_of(room.place(gang(8, pods=5))) == ["n000", "n001", "n002", "n003", "n004"]
    assert nodes_of(room.place(gang(4, pods=3))) == ["n005", "n005", "n006"]
    assert nodes_of(room.find(gang(4, pods=2))) == ["n006", "n007"]


def test_what_was_found_is_taken_as_it_was_found_or_else_anew() -> None:
    room = FreeCapacity(racks(4), scoring=BEST_FIT)
    found = room.find(gang(8))
    assert nodes_of(found) == ["n000"]
    room.put(node("n000", cpu_free=5000))
    assert not isinstance(found, Reason)
    room.take(gang(8), found)
    assert (room.nodes["n000"].cpu_free, room.nodes["n000"].gpu_free) == (4000, (0,) * 8)


def test_of_many_kinds_that_take_equal_gpus_the_first_judges_all_nodes_and_the_others_few() -> None:
    scoring = Counting()
    states = [node(f"n{at:03}", free=(1000,) * (1 + at % 8) + (0,) * (7 - at % 8)) for at in range(200)]
    room = FreeCapacity([replace(each, cpu_free=64_000 - 100 * at) for at, each in enumerate(states)], scoring=scoring)
    for kind in range(100):
        verdict = room.place(gang_of((RoleNeed("w", 1, Need(cpu_milli=1000 + kind, memory_bytes=2**20, gpus=1)),)))
        assert not isinstance(verdict, Reason)
    assert scoring.judged < 200 + 5 * 100


def test_kinds_that_ask_for_ever_less_are_judged_by_one_that_asks_for_nothing_but_gpus() -> None:
    scoring = Counting()
    room = FreeCapacity([node(f"n{at:03}", cpu_free=64_000 - 100 * at) for at in range(200)], scoring=scoring)
    for kind in range(100):
        verdict = room.place(gang_of((RoleNeed("w", 1, Need(cpu_milli=9000 - kind, memory_bytes=2**20, gpus=1)),)))
        assert not isinstance(verdict, Reason)
    assert scoring.judged < 2 * 200 + 5 * 100


class Crowded(BestFit):
    """Scores lower the more CPU a pod asks for, by a price of each node's own."""

    words = 1

    def score(self, need: Need, node: Node) -> int:
        return -need.cpu_milli * (node.cpu_free % 7)


def test_when_many_nodes_changed_they_are_judged_anew_for_each_kind() -> None:
    room = FreeCapacity([node(f"n{at:03}", cpu_free=63_000 + at) for at in range(100)], scoring=Crowded())
    assert nodes_of(room.find(gang(1))) == ["n000"]  # 63,000 is a multiple of 7
    for at in range(100):
        room.put(node(f"n{at:03}", cpu_free=56_003 + at))
    assert nodes_of(room.find(gang(1))) == ["n004"]
