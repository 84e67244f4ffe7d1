"""Whatever comes and goes: devices are never overfilled, and what is kept between placements changes no answer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, Place, PoolSize
from tessera.engine.pricing.policies import POLICIES
from tessera.engine.pricing.stranding import stranded

SIZE = PoolSize(nodes=6, devices=4, models=2, largest_cpu=32_000)
WHOLE = 1000

rooms = st.builds(
    lambda cpu, memory, pods, model, gpus: NodeRoom(cpu * 1000, memory, pods, model, (WHOLE,) * gpus),
    st.integers(2, 32),
    st.integers(1, 64),
    st.integers(1, 12),
    st.integers(0, 1),
    st.integers(0, 4),
)
asks = st.builds(
    lambda cpu, memory, count, milli, models: Ask(
        cpu * 1000, memory, count, milli if count == 1 else WHOLE, models if count else 0
    ),
    st.integers(0, 12),
    st.integers(0, 16),
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    st.sampled_from([100, 250, 333, 470, 810, WHOLE, WHOLE]),
    st.integers(0, 3),
)
clusters = st.lists(rooms, min_size=SIZE.nodes, max_size=SIZE.nodes)
menus = st.lists(asks, min_size=1, max_size=6, unique=True)
moves = st.lists(
    st.tuples(st.sampled_from(["place", "place", "place", "release", "remove", "reset"]), st.integers(0, 99))
)
policies = st.sampled_from([name for name in POLICIES if name != "random"])
PRICES = (
    (TypicalPod(2000, 470, 1, 0), 400_000),
    (TypicalPod(4000, 810, 1, 1), 900_000),
    (TypicalPod(4000, 1000, 1, 0), 1_000_000),
)


def packer_of(cluster, menu, policy, order=None):
    packer = Packer(SIZE, policy, order)
    for n, room in enumerate(cluster):
        packer.set_node(n, room)
    packer.know({ask.kind: 1 + number for number, ask in enumerate(menu)})
    packer.price(PRICES)
    for ask in menu:
        packer.add_class(ask)
    return packer


def play(packer, menu, cluster, steps, see):
    """Carry out the steps; `see` is told each class asked for and its place, before the next step."""
    running = []
    for what, number in steps:
        if what == "place":
            t = number % len(menu)
            place = packer.place(t)
            see(packer, t, place)
            if place:
                running.append((t, place))
        elif what == "release" and running:
            packer.release(*running.pop(number % len(running)))
        elif what == "remove":
            packer.remove_node(number % SIZE.nodes)
        elif what == "reset":
            n = number % SIZE.nodes
            packer.set_node(n, packer.room(n))
    return running


def room_for(packer, ask, n):
    """The hard tests, spelled out."""
    room = packer.room(n)
    return (
        bool(packer.core.nodes.live[n])
        and room.cpu >= ask.cpu
        and room.memory >= ask.memory
        and room.pods >= 1
        and (not ask.models or bool(ask.models >> room.model & 1))
        and sum(left >= ask.milli for left in room.free) >= ask.devices
    )


@settings(max_examples=60, deadline=None)
@given(clusters, menus, st.sampled_from(list(POLICIES)), moves)
def test_nothing_is_given_twice_and_all_that_was_taken_is_given_back(cluster, menu, policy, steps):
    def within(packer, t, place):
        for n in range(SIZE.nodes):
            room = packer.room(n)
            assert min(room.cpu, room.memory, room.pods, *room.free, WHOLE) >= 0
            assert max((*room.free, 0)) <= WHOLE

    packer = packer_of(cluster, menu, policy)
    for t, place in play(packer, menu, cluster, steps, within):
        packer.release(t, place)
    assert [packer.room(n) for n in range(SIZE.nodes)] == cluster


@settings(max_examples=60, deadline=None)
@given(clusters, menus, st.sampled_from(list(POLICIES)), moves)
def test_a_pod_is_dropped_only_when_no_node_has_room_for_it(cluster, menu, policy, steps):
    def judged(packer, t, place):
        if place is None:
            assert not any(room_for(packer, menu[t], n) for n in range(SIZE.nodes))

    play(packer_of(cluster, menu, policy), menu, cluster, steps, judged)


@settings(max_examples=60, deadline=None)
@given(clusters, menus, policies, moves)
def test_what_is_kept_between_placements_gives_the_same_as_starting_from_scratch(cluster, menu, policy, steps):
    def asked_again(packer, t, place):
        if place is not None:
            packer.release(t, place)
            scratch = packer_of([packer.room(n) for n in range(SIZE.nodes)], menu, policy)
            for n in range(SIZE.nodes):
                scratch.core.nodes.kinds[n] = packer.core.nodes.kinds[n]
                if not packer.core.nodes.live[n]:
                    scratch.remove_node(n)
            assert scratch.place(t) == place
            packer.place(t)

    play(packer_of(cluster, menu, policy), menu, cluster, steps, asked_again)


@settings(max_examples=40, deadline=None)
@given(clusters, menus, policies, st.lists(st.integers(0, 5), max_size=20), st.permutations(range(SIZE.nodes)))
def test_the_index_of_a_node_does_not_matter_only_its_place_in_the_order(cluster, menu, policy, wanted, shuffled):
    straight = packer_of(cluster, menu, policy)
    turned = packer_of([cluster[n] for n in shuffled], menu, policy, order=list(shuffled))
    classes = [number % len(menu) for number in wanted]
    expected = [place and Place(shuffled.index(place.node), place.devices) for place in straight.place_all(classes)]
    assert turned.place_all(classes) == expected


@settings(max_examples=40, deadline=None)
@given(clusters, menus, policies, st.lists(st.integers(0, 5), max_size=20))
def test_many_at_once_are_placed_as_one_after_the_other(cluster, menu, policy, wanted):
    classes = [number % len(menu) for number in wanted]
    one, many = packer_of(cluster, menu, policy), packer_of(cluster, menu, policy)
    assert [one.place(t) for t in classes] == many.place_all(classes)


@settings(max_examples=60, deadline=None)
@given(clusters, menus, policies, st.lists(st.integers(0, 5), max_size=20))
def test_the_causes_of_idle_gpus_add_up_to_the_idle_gpus(cluster, menu, policy, wanted):
    packer = packer_of(cluster, menu, policy)
    packer.place_all([number % len(menu) for number in wanted])
    causes = stranded(packer.core.nodes, {ask: 1 + number for number, ask in enumerate(menu)})
    assert causes.min() >= 0
    assert causes.sum(axis=1).tolist() == [sum(packer.room(n).free) for n in range(SIZE.nodes)]
