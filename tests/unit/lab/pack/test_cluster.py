"""The published measure of fragmentation against its definition in fractions; and why what is free is not used."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.mix import MixKind
from tessera.domain.storing.fast import replace
from tessera.engine.scoring.fgd import STEPS, typical
from tessera.engine.scoring.workload import PodWorkload
from tessera_lab.pack.cluster import Fragmentation
from tessera_lab.pack.stranding import Cause, stranded
from tests.unit.lab.pack.one_node import node, share, trace_of, whole, without_gpu

kinds = st.builds(
    lambda cpu, milli, count, models: MixKind(cpu, 1000 if count > 1 else milli if count else 0, count, models),
    st.integers(0, 20).map(lambda n: n * 1000),
    st.sampled_from([160, 320, 470, 810, 1000]),
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    st.sampled_from([(), (), ("A",), ("B",), ("A", "B")]),
)


def by_definition(there, counts):
    """F of a node: over the kinds, all that is free if the kind cannot run, else the too small devices."""
    found, free = Fraction(0), there.gpu_free
    for kind, count in counts.items():
        enough = [left for left in free if left >= kind.gpu_milli]
        runs = kind.gpus > 0 and kind.cpu_milli <= there.cpu_free and len(enough) >= kind.gpus
        if kind.models and there.gpu_model not in kind.models:
            runs = False
        lost = sum(free) - sum(enough) if runs else sum(free)
        found += Fraction(count, sum(counts.values())) * lost
    return found


@settings(deadline=None)
@given(
    st.dictionaries(kinds, st.integers(1, 50), min_size=1, max_size=8),
    st.lists(st.sampled_from([0, 100, 190, 350, 530, 1000]), min_size=1, max_size=8),
    st.integers(1, 20).map(lambda n: n * 1000),
    st.sampled_from(["A", "B"]),
)
def test_fragmentation_is_what_the_paper_defines(counts, free, cpu, model):
    there, known = node(*free, cpu=cpu, model=model), PodWorkload(sorted(counts.items()))
    lost = sum(free) * known.total - known.usable(there, there.cpu_free, there.gpu_free)
    assert Fraction(lost, known.total) == by_definition(there, counts)


def test_the_fragmentation_of_a_cluster_follows_its_nodes():
    there = node(1000, 1000)
    measure = Fragmentation(trace_of(pods=(whole(2),)), {there.name: there})
    assert measure.total == 0
    measure.changed(replace(there, gpu_free=(1000, 300)))
    assert measure.total == 1300 * measure.unit


def test_the_typical_workload_stops_at_95_percent_of_the_pods():
    many, some, few = MixKind(1, 1000, 1), MixKind(2, 1000, 1), MixKind(3, 1000, 1)
    assert typical({few: 2, many: 90, some: 8}.items()) == [(many, 90), (some, 8)]
    assert typical({many: 96, some: 4}.items()) == [(many, 96)]


def test_the_steps_of_a_score_are_those_of_the_logistic_of_the_gain_in_gpus():
    # 100 / (1 + e^-1) = 73.1; 100 / (1 + e^-0.04) = 50.99…; 100 / (1 + e^0.2) = 45.01…
    gains = {0: 50, 1_000_000: 73, -1_000_000: 26, 40_000: 50, 40_006: 51, -200_000: 45, -8_000_000: 0, 8_000_000: 99}
    assert {gain: sum(step <= gain for step in STEPS) for gain in gains} == gains


def causes(there, pods):
    row = stranded([there], pods)[0]
    return {cause: int(row[cause]) for cause in Cause if row[cause]}


def test_each_cause_is_named_in_the_order_of_the_tests():
    one = {whole(cpu=4000, memory=10, models=("A",)): 1}
    assert causes(node(1000, model="B"), one) == {Cause.MODEL: 1000}
    assert causes(node(500, cpu=1), one) == {Cause.SHAPE: 500}
    assert causes(node(1000, cpu=1), one) == {Cause.CPU: 1000}
    assert causes(node(1000, memory=9), one) == {Cause.MEMORY: 1000}
    assert causes(replace(node(1000), pods_free=0), one) == {Cause.PODS: 1000}
    assert causes(node(1000, 300), one) == {Cause.USABLE: 1000, Cause.SHAPE: 300}


def test_kinds_share_a_node_by_how_often_they_come():
    assert causes(node(400), {share(400): 3, whole(): 1}) == {Cause.USABLE: 300, Cause.SHAPE: 100}


def test_what_does_not_divide_goes_to_the_largest_remainder():
    assert causes(node(100), {share(100): 2, whole(): 1}) == {Cause.USABLE: 67, Cause.SHAPE: 33}


def test_pods_without_gpu_say_nothing_about_gpus():
    assert causes(node(1000), {without_gpu(): 9}) == {Cause.USABLE: 1000}
