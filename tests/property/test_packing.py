"""Whatever comes and goes, by every policy: no device is overfilled, nothing is refused that fits, nothing is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.baselines import gang_of_pod, nodes_for
from tessera_lab.pack.cluster import takes_pod
from tessera_lab.pack.replay import POLICIES, scoring_of
from tessera_lab.pack.stranding import stranded
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod

nodes = st.builds(
    lambda cpu, memory, model, gpus: TraceNode(cpu * 1000, memory, gpus, model),
    st.integers(2, 32),
    st.integers(1, 64),
    st.sampled_from("AB"),
    st.integers(1, 4),
)
pods = st.builds(
    lambda cpu, memory, count, milli, models: TracePod(
        cpu * 1000, memory, count, (milli if count == 1 else 1000) if count else 0, models if count else ()
    ),
    st.integers(0, 12),
    st.integers(0, 16),
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    st.sampled_from([100, 250, 333, 470, 810, 1000, 1000]),
    st.sampled_from([(), (), ("A",), ("B",)]),
)
traces = st.builds(
    lambda nodes, pods: Trace("drawn", tuple(nodes), tuple(pods)),
    st.lists(nodes, min_size=3, max_size=6),
    st.lists(pods, min_size=1, max_size=6, unique=True),
)
moves = st.lists(st.tuples(st.sampled_from(["place", "place", "place", "leave"]), st.integers(0, 99)), max_size=30)


def play(trace, policy, steps):
    """Yields what is free and, for a placement, the pod with what was found, after each step; at last all leave."""
    room = FreeCapacity(nodes_for(policy, trace, 1), scoring=scoring_of(trace, policy, 1).in_force())
    running = []
    for what, number in [*steps, *[("leave", 0)] * len(steps)]:
        if what == "place":
            pod = trace.pods[number % len(trace.pods)]
            gang = gang_of_pod(policy, pod)
            before, found = dict(room.nodes), room.place(gang)
            if isinstance(found, tuple):
                running.append((gang, found))
            yield room, before, pod, found
        elif running:
            room.give_back(*running.pop(number % len(running)))
            yield room, None, None, None


@settings(max_examples=60, deadline=None)
@given(traces, st.sampled_from(POLICIES), moves)
def test_nothing_is_given_twice_and_all_that_was_taken_is_given_back(trace, policy, steps):
    room = None
    for room, *_ in play(trace, policy, steps):
        assert not any(node.overfull for node in room.nodes.values())
    if room is not None:
        assert list(room.nodes.values()) == nodes_for(policy, trace, 1)


@settings(max_examples=60, deadline=None)
@given(traces, st.sampled_from(POLICIES), moves)
def test_a_pod_is_refused_exactly_when_no_node_has_room_for_it(trace, policy, steps):
    for _, before, pod, found in play(trace, policy, steps):
        if pod is not None:
            assert isinstance(found, tuple) == any(takes_pod(node, pod) for node in before.values())


@settings(max_examples=60, deadline=None)
@given(traces, st.sampled_from([name for name in POLICIES if name != "random"]), moves)
def test_what_is_kept_between_placements_gives_the_same_as_starting_from_scratch(trace, policy, steps):
    for room, before, pod, found in play(trace, policy, steps):
        if isinstance(found, tuple):
            scratch = FreeCapacity(before.values(), scoring=room.places.scoring)
            assert scratch.find(gang_of_pod(policy, pod)) == found


@settings(max_examples=40, deadline=None)
@given(traces, st.sampled_from(POLICIES), moves)
def test_the_causes_of_idle_gpus_add_up_to_the_idle_gpus(trace, policy, steps):
    counts = {pod: 1 + number for number, pod in enumerate(trace.pods)}
    for room, *_ in play(trace, policy, steps):
        causes = stranded(list(room.nodes.values()), counts)
        assert causes.min() >= 0
        assert causes.sum(axis=1).tolist() == [sum(node.gpu_free) for node in room.nodes.values()]
