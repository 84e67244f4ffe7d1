"""Devices are drawn for claims as if all were tried: legally, whenever it can be done, choices in their order."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.claims import ClaimNeed
from tessera.engine.claims.drawing import Drawn, FreeOffer, count_sets, draw
from tessera.engine.claims.solving import Shortage
from tests.property.device_worlds import Assigned, DeviceWorld, best_choices, legal, random_claims, random_world

SEEDS = st.integers(0, 2**32 - 1)


def _assigned(claims: tuple[ClaimNeed, ...], drawn: tuple[Drawn, ...]) -> Assigned:
    given: Assigned = []
    for number, claim in enumerate(claims):
        for request in claim.requests:
            had = [each for each in drawn if each.claim == claim.name and each.request.split("/")[0] == request.name]
            (name,) = {each.request.partition("/")[2] for each in had}
            (choice,) = [choice for choice in request.choices if choice.name == name]
            assert choice.count in (0, len(had))
            given.append((number, choice, request, claim, tuple(each.index for each in had)))
    return given


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_a_draw_is_legal_and_there_whenever_there_is_one_with_the_earliest_choices(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    drawn, best = draw(world.free, claims), best_choices(world, claims)
    if isinstance(drawn, Shortage):
        assert best is None, drawn
        return
    given = _assigned(claims, drawn)
    assert legal(world, given)
    assert best == tuple(request.choices.index(choice) for _, choice, request, _, _ in given)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_sets_are_counted_as_they_are_drawn_one_after_the_other(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    expected, taken = 0, world.taken
    while expected < 8:
        drawn = draw(FreeOffer(world.free.offer, world.free.tainted, taken), claims)
        if isinstance(drawn, Shortage):
            break
        expected += 1
        taken = (*taken, *((each.index, each.capacity) for each in drawn if not each.admin))
    assert count_sets(world.free, claims, 8) == expected


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_more_devices_taken_give_no_draw_where_there_was_none(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    claims = tuple(claim for claim in random_claims(random) if all(c.count for r in claim.requests for c in r.choices))
    less = DeviceWorld(world.layout, world.takes, world.tainted, ())
    if claims and isinstance(draw(less.free, claims), Shortage):
        assert isinstance(draw(world.free, claims), Shortage)
