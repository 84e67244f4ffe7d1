"""Devices are drawn for claims as if all were tried: legally, whenever it can be done, choices in their order."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.claims import ClaimNeed, claim_needs
from tessera.engine.claims.drawing import (
    PODS_TOGETHER_MAX,
    Drawn,
    FreeOffer,
    count_sets,
    draw,
    draw_together,
    is_answer,
)
from tessera.engine.claims.shortages import Shortage
from tessera.testkit.checker.checked_nodes import CheckedNodes, HeldAmounts
from tessera.testkit.devices_checker import drawn_amounts
from tests.property.device_worlds import (
    Assigned,
    DeviceWorld,
    best_choices,
    drawn_of,
    facts_of,
    legal,
    random_assignment,
    random_claims,
    random_world,
    spec_of,
)

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


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_what_is_usually_claimed_changes_which_devices_are_drawn_and_never_whether(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    devices = enumerate(world.layout.devices)
    sizes = tuple(each.model_copy(update={"gpu": 0, "gpu_milli": 100 + at}) for at, each in devices)
    sized = replace(world, layout=world.layout.model_copy(update={"devices": sizes}))
    known = sorted(sized.offer.selections)
    usual = tuple(sorted(random.sample(known, random.randint(1, 3))))
    drawn, best = draw(replace(sized.free, pieces=(usual, tuple(known))), claims), best_choices(world, claims)
    if isinstance(drawn, Shortage):
        assert best is None, drawn
        return
    given = _assigned(claims, drawn)
    assert legal(world, given)
    assert best == tuple(request.choices.index(choice) for _, choice, request, _, _ in given)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_as_many_pods_are_counted_as_fit_together_and_as_are_drawn_one_after_the_other(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    one_by_one, taken = 0, world.taken
    while one_by_one < 8:
        drawn = draw(FreeOffer(world.free.offer, world.free.tainted, taken), claims)
        if isinstance(drawn, Shortage):
            break
        one_by_one += 1
        taken = (*taken, *((each.index, each.capacity) for each in drawn if not each.admin))
    counted = count_sets(world.free, claims, 8)
    assert counted >= one_by_one
    # Every device that matches is others after each pod; and what is tried here are all sets of all pods at once.
    requests = [request for claim in claims for request in claim.requests]
    if all(choice.count for request in requests for choice in request.choices):
        for pods in (counted, counted + 1):
            if 0 < pods <= PODS_TOGETHER_MAX and pods * len(requests) <= 3:
                assert (best_choices(world, claims * pods) is not None) is (pods == counted)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_devices_drawn_for_several_pods_at_once_are_legal_for_all_of_them(seed: int) -> None:
    random = Random(seed)
    world, first, second = random_world(random), random_claims(random), random_claims(random)
    drawn = draw_together(world.free, (first, second))
    if isinstance(drawn, Shortage):
        few = sum(len(claim.requests) for claim in first + second) <= 3
        assert not few or best_choices(world, first + second) is None
        return
    others = [(number + len(first), *rest) for number, *rest in _assigned(second, drawn[1])]
    assert legal(world, [*_assigned(first, drawn[0]), *others])


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_more_devices_taken_give_no_draw_where_there_was_none(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    claims = tuple(claim for claim in random_claims(random) if all(c.count for r in claim.requests for c in r.choices))
    less = DeviceWorld(world.layout, world.takes, world.tainted, ())
    if claims and isinstance(draw(less.free, claims), Shortage):
        assert isinstance(draw(world.free, claims), Shortage)


def _judged(world: DeviceWorld, claims: tuple[ClaimNeed, ...], given: Assigned) -> list[str]:
    """What the ledger's checker, which knows no engine, finds wrong with the devices of a pod."""
    facts, node = facts_of(world, "n1")
    checked = CheckedNodes()
    checked.nodes["n1"] = node
    for fact in facts:
        checked.devices.take(fact)
    drawn, specs = drawn_of(world, given, "n1"), tuple(map(spec_of, claims))
    assert claim_needs(specs) == claims
    added = HeldAmounts({("n1", what): amount for what, amount in drawn_amounts(drawn).items()})
    over = [what for _, what in checked.take(checked.held, added)]
    wrong = checked.devices.unanswered(specs, drawn, node)
    return [*over, *([wrong] if wrong else [])]


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_the_checker_of_ledgers_finds_no_draw_wrong(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    drawn = draw(world.free, claims)
    if not isinstance(drawn, Shortage):
        assert _judged(world, claims, _assigned(claims, drawn)) == []


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_the_checker_of_ledgers_and_the_engine_find_wrong_what_is_not_legal(seed: int) -> None:
    random = Random(seed)
    world, claims = random_world(random), random_claims(random)
    given_ = random_assignment(random, world, claims)
    is_legal, names = legal(world, given_), [device.name for device in world.layout.devices]
    assert (_judged(world, claims, given_) == []) is is_legal
    drawn = tuple(
        Drawn(each.claim, each.request, names.index(each.device), each.capacity, each.admin)
        for each in drawn_of(world, given_, "n1")
    )
    assert is_answer(world.free, claims, drawn) is is_legal
