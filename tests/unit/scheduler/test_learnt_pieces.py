"""What jobs claim of GPUs that may be cut is learnt, told to the nodes of their pool, and kept free for later jobs."""

from typing import Any

from tessera.domain.mix import PIECES_MAX, SETTLED_AT, Mix, see_pieces
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.table import Table
from tessera_schemas.facts import CancelRequested
from tests.builders import admitted, job_spec
from tests.published_devices import (
    claim,
    claiming,
    layout_seen,
    mig_gpus,
    offering,
    profile_facts,
    selected_profiles,
)
from tests.rounds import Rounds, share

ONE = mig_gpus(1)
PODS = SETTLED_AT[0] // 2


def park(nodes: int = 1) -> Rounds:
    """Nodes of one GPU that may be cut, and a class for each profile."""
    named = [offering(f"node-{number}", ONE, 1) for number in range(nodes)]
    return Rounds(share("research", 64, None), nodes=[layout_seen(ONE), *profile_facts(ONE, 1), *named])


def claims(world: Rounds, key: str, profile: str, **more: Any) -> None:
    world.commit(admitted(key, job_spec(claiming(claim(device_class=profile), **more), name=key)))


def learn(world: Rounds, *profiles: str, **rare: str) -> None:
    """Pods of each profile come and go before they run, as many of each; one of each that is rare."""
    for number in range(PODS):
        for profile in profiles:
            come_and_go(world, f"{profile.replace('.', '-')}-{number}", profile)
        for name, profile in rare.items() if not number else ():
            come_and_go(world, name, profile)


def come_and_go(world: Rounds, key: str, profile: str) -> None:
    claims(world, key, profile)
    world.commit(CancelRequested(kind="cancel_requested", job_id=world.job(key).job_id))


def drawn(world: Rounds, key: str) -> list[str]:
    run = world.run(key)
    return [] if run is None else [f"{p.node}/{d.device}" for p in run.all_placements for d in p.drawn]


def test_nodes_hear_what_is_claimed_after_as_many_pods_as_a_mix_settles_by_and_a_new_node_at_once() -> None:
    world = park()
    learn(world, "2g.20gb", "3g.40gb")
    told = (selected_profiles("2g.20gb", "3g.40gb"),) * 2
    assert world.state.nodes.get("node-0").pieces == told
    world.commit(offering("node-new", ONE, 1))
    assert world.state.nodes.get("node-new").pieces == told
    restored = load(dump(world.state))
    assert StateHash().of(restored) == StateHash().of(world.state)


def test_fewer_pods_and_nodes_without_drivers_change_nothing() -> None:
    world = park()
    learn(world, "2g.20gb")
    assert world.state.nodes.get("node-0").pieces == ()


def test_quarters_leave_the_half_whole_that_others_usually_claim() -> None:
    world = park()
    learn(world, "2g.20gb", "3g.40gb")
    for key, profile in (("first", "2g.20gb"), ("half", "3g.40gb"), ("second", "2g.20gb")):
        claims(world, key, profile)
        world.settle()
    assert drawn(world, "half") == ["node-0/gpu-0-3g-40gb-4"]
    assert len(drawn(world, "first") + drawn(world, "second")) == 2


def test_an_emptier_node_is_taken_where_the_fuller_one_would_lose_its_half() -> None:
    for profiles, node in (((), "node-0"), (("2g.20gb", "3g.40gb"), "node-1")):
        world = park(2)
        learn(world, *profiles)
        # An eighth and a quarter in the lower half leave no second quarter there.
        for key, profile in (("first", "2g.20gb"), ("eighth", "1g.10gb"), ("second", "2g.20gb")):
            claims(world, key, profile)
            world.settle()
        assert [drawn(world, key)[0].split("/")[0] for key in ("first", "eighth")] == ["node-0", "node-0"]
        assert drawn(world, "second")[0].split("/")[0] == node


def test_of_the_slots_of_one_gpu_that_is_taken_which_leaves_most_to_rare_claims_too() -> None:
    world = park()
    learn(world, "whole", quarter="2g.20gb", half="3g.40gb")
    for number in range(PODS):
        come_and_go(world, f"more-{number}", "whole")
    usual, every = world.state.nodes.get("node-0").pieces
    assert (usual, every) == (selected_profiles("whole"), selected_profiles("2g.20gb", "3g.40gb", "whole"))
    for key, profile in (("first", "2g.20gb"), ("last", "3g.40gb"), ("second", "2g.20gb")):
        claims(world, key, profile)
        world.settle()
    assert drawn(world, "second")


def test_rare_pieces_keep_nothing_and_the_rarest_make_way() -> None:
    mixes = Table[Mix]()
    see_pieces(mixes, "default", {"often": 49_000}, 49)
    see_pieces(mixes, "default", {"rare": 1000}, 1)
    assert mixes.get("default").pieces == (("often",), ("often", "rare"))
    for number in range(PIECES_MAX + 5):
        see_pieces(mixes, "default", {f"other-{number:02}": 2000}, 1)
    known = dict(mixes.get("default").claimed)
    assert len(known) == PIECES_MAX
    assert ("often" in known, "rare" in known) == (True, False)


def test_old_claims_count_half_when_there_are_many() -> None:
    mixes = Table[Mix]()
    for _ in range(400):
        see_pieces(mixes, "default", {"piece": 1000}, 41)
    found = mixes.get("default")
    assert found.claiming < 16_384
    assert found.claimed[0][1] < 400_000
