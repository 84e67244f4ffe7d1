"""Which scoring is in force, and what it is made of."""

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need
from tessera.domain.mix import SETTLED_AT, Mix, MixKind
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.fgd import FragmentationGradient
from tessera.engine.scoring.policies import find_scoring_policy
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import BEST_FIT
from tessera.engine.scoring.published import DotProduct, GpuPacking, Random
from tests.builders import node_seen
from tests.rounds import Rounds

ONE = Need(1000, 1, gpus=1)


@pytest.mark.parametrize(
    ("placement", "kind"),
    [
        ("tessera", PriceAware),
        ("fgd", FragmentationGradient),
        ("bestfit", type(BEST_FIT)),
        ("gpu-packing", GpuPacking),
        ("dotprod", DotProduct),
        ("random", Random),
    ],
)
def test_the_configuration_names_it(placement: str, kind: type) -> None:
    assert type(find_scoring_policy(Rounds(placement=placement).state, "default")) is kind


def test_its_tables_serve_until_the_mix_settles_anew() -> None:
    rounds = Rounds()
    rounds.submit("first")
    before = find_scoring_policy(rounds.state, "default")
    for number in range(SETTLED_AT[0] - 2):
        rounds.submit(f"job-{number}", cpu_milli=2000)
    assert find_scoring_policy(rounds.state, "default") is before
    trial = rounds.state.overlay()
    rounds.submit("last")
    assert find_scoring_policy(rounds.state, "default") is not before
    assert find_scoring_policy(trial, "default") is not None


def test_a_restored_state_places_as_the_one_that_was_folded() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8, "node-c": 4})
    for number in range(6):
        rounds.submit(f"job-{number}", gpus=1 + number % 2, cpu_milli=3000)
    rounds.settle()
    restored = load(iter(list(dump(rounds.state))))
    assert StateHash().of(restored) == StateHash().of(rounds.state)
    places = []
    for state in (rounds.state, restored):
        room = FreeCapacity(nodes_for(state, "default", ""), scoring=find_scoring_policy(state, "default"))
        places.append(room.find(rounds.job("job-0").roles))
    assert places[0] == places[1]


def test_small_jobs_leave_a_node_empty_where_a_pool_has_less_cpu_than_is_usual_elsewhere() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8})
    for number in range(8):
        rounds.submit(f"small-{number}")
    rounds.settle()
    assert {place.node for run in rounds.state.runs.values() for place in run.places} == {"node-a"}


def test_a_kind_that_a_node_does_not_serve_is_worth_nothing_there() -> None:
    shares = Mix("default", known=((MixKind(1000, 500, 1), 10),), largest_cpu_milli=64_000)
    whole, both = (empty_node(node_seen(profile, 8, device_profile=profile)) for profile in ("whole", "plugin"))
    scoring = PriceAware(shares)
    assert scoring.score(ONE, whole) > scoring.score(ONE, both)


def test_of_a_kind_that_runs_anywhere_a_model_that_others_wait_for_is_kept_free() -> None:
    mix = Mix(
        "default",
        known=((MixKind(1000, 1000, 1), 10), (MixKind(1000, 1000, 1, ("h100",)), 10)),
        prices=(500_000, 1_000_000),
        largest_cpu_milli=64_000,
    )
    scarce, common = (empty_node(node_seen(model, 8, gpu_model=model)) for model in ("h100", "a100"))
    assert PriceAware(mix).score(ONE, common) > PriceAware(mix).score(ONE, scarce)


def test_random_draws_the_same_for_the_same_node_and_anew_when_it_has_changed() -> None:
    node = empty_node(node_seen("node-a", 8))
    again = empty_node(node_seen("node-a", 8))
    used = Rounds()
    used.submit("one")
    used.settle()
    (other,) = used.state.nodes.values()
    assert Random().score(ONE, node) == Random().score(ONE, again)
    assert Random().score(ONE, node) != Random().score(ONE, other)
