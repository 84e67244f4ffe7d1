"""The published measure of fragmentation, against its definition in fractions."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.pricing.fragmentation import (
    STEPS,
    TypicalPod,
    fgd_score,
    fragmented,
    nothing_known,
    typical,
    workload,
)
from tests.unit.engine.pricing.pools import pool, room

kinds = st.builds(
    lambda cpu, milli, count, models: TypicalPod(cpu, 1000 if count > 1 else milli if count else 0, count, models),
    st.integers(0, 20).map(lambda n: n * 1000),
    st.sampled_from([160, 320, 470, 810, 1000]),
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    st.sampled_from([0, 0, 1, 2, 3]),
)


def by_definition(free, cpu, model, counts):
    """F of a node: over the kinds, all that is free if the kind cannot run, else the too small devices."""
    found = Fraction(0)
    for kind, count in counts.items():
        enough = [left for left in free if left >= kind.milli]
        runs = kind.devices > 0 and kind.cpu <= cpu and len(enough) >= kind.devices
        if kind.models and not kind.models >> model & 1:
            runs = False
        lost = sum(free) - sum(enough) if runs else sum(free)
        found += Fraction(count, sum(counts.values())) * lost
    return found


@settings(deadline=None)
@given(
    st.dictionaries(kinds, st.integers(1, 50), min_size=1, max_size=8),
    st.lists(st.sampled_from([0, 100, 190, 350, 530, 1000]), min_size=1, max_size=8),
    st.integers(0, 20).map(lambda n: n * 1000),
    st.integers(0, 1),
)
def test_fragmentation_is_what_the_paper_defines(counts, free, cpu, model):
    packer, known = pool(room(*free, cpu=cpu, model=model)), workload(counts, 4, 8)
    assert Fraction(int(fragmented(packer.core.nodes, known, 0)), known.total) == by_definition(
        free, cpu, model, counts
    )


def test_with_nothing_known_all_that_is_free_counts_as_fragmented():
    assert fragmented(pool(room(1000, 500)).core.nodes, nothing_known(4, 8), 0) == 1500


def test_the_typical_workload_stops_at_95_percent_of_the_pods():
    many, some, few = TypicalPod(1, 1000, 1, 0), TypicalPod(2, 1000, 1, 0), TypicalPod(3, 1000, 1, 0)
    assert typical({few: 2, many: 90, some: 8}) == {many: 90, some: 8}
    assert typical({many: 96, some: 4}) == {many: 96}


def test_the_score_is_a_hundred_times_the_logistic_of_the_gain_in_gpus_rounded_down():
    # 100 / (1 + e^-1) = 73.1; 100 / (1 + e^-0.04) = 50.99…; 100 / (1 + e^0.2) = 45.01…
    gains = {0: 50, 1_000_000: 73, -1_000_000: 26, 40_000: 50, 40_006: 51, -200_000: 45, -8_000_000: 0, 8_000_000: 99}
    assert {gain: int(fgd_score(STEPS, gain)) for gain in gains} == gains


@settings(deadline=None)
@given(st.dictionaries(kinds, st.integers(1, 50), min_size=2, max_size=8))
def test_the_workload_does_not_depend_on_the_order_in_which_kinds_were_counted(counts):
    turned = dict(reversed(list(counts.items())))
    assert list(typical(counts).items()) == list(typical(turned).items())
    assert all((a == b).all() for a, b in zip(workload(counts, 4, 8)[1:], workload(turned, 4, 8)[1:], strict=True))
