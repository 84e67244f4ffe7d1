"""Each whole hundred of seeds must reach everything by itself."""

from tessera.testkit.sim.coverage import Coverage, Hundreds


def full() -> Coverage:
    """A seed that reached everything once."""
    made = Coverage()
    for counter in (made.faults, made.nodes, made.crash_points, made.edges, made.facts, made.records, made.reasons):
        counter.update(counter.keys())
    return made


def lacking(fault: str) -> Coverage:
    made = full()
    made.faults[fault] = 0
    return made


def test_what_one_hundred_misses_is_a_hole_although_another_reached_it():
    hundreds = Hundreds(first=1001)
    for _ in range(100):
        hundreds.add(full())
    for _ in range(100):
        hundreds.add(lacking("store wiped"))
    assert hundreds.holes() == ["fault: store wiped (seeds 1101 to 1200)"]


def test_one_seed_of_a_hundred_is_enough_and_is_named_among_the_rarest():
    hundreds = Hundreds(first=1)
    hundreds.add(full())
    for _ in range(99):
        hundreds.add(lacking("repeat"))
    assert hundreds.holes() == []
    lines = list(hundreds.lines())
    assert lines[lines.index("rarest, by seeds that reached them of 100:") + 1] == "          1  fault: repeat"


def test_of_fewer_seeds_only_what_all_of_them_missed_is_a_hole():
    hundreds = Hundreds(first=1)
    hundreds.add(lacking("drop"))
    assert hundreds.holes() == ["fault: drop"]
    hundreds.add(full())
    assert hundreds.holes() == []
