"""What a draw loses to others: pieces of a GPU that the usual claims could still have had, and cannot any more."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.offers import Offer
from tessera.engine.claims.islands import Island, IslandState, after, islands_of, possible
from tessera.engine.claims.pieces import DEVICES_MAX, lost, usual_devices
from tessera_schemas.cluster.device_layouts import DeviceLayout, DevicePool, OfferedDevice
from tests.published_devices import mig_gpus, mig_offer, selected_profiles

ONE = mig_offer(1)


def place(name: str) -> int:
    return next(at for at, device in enumerate(ONE.devices) if device.name == f"gpu-0-{name}")


def usual(*profiles: str) -> int:
    return usual_devices(ONE, selected_profiles(*profiles))


def island() -> Island:
    (found,) = islands_of(ONE, ())[0]
    return found


def most(state: IslandState, wanted: int) -> int:
    """By trying every set of devices, in any order of which the counters allow one or none."""
    make = island().make
    usable = [at for at in range(len(make.devices)) if wanted >> at & 1 and possible(make, state) >> at & 1]
    best = 0
    for count in range(8):
        for chosen in combinations(usable, count):
            left = state
            for at in chosen:
                if not possible(make, left) >> at & 1:
                    break
                left = after(make, left, at, None)
            else:
                best = max(best, sum(make.devices[at].gpu_milli for at in chosen))
    return best


@given(st.data())
def test_a_loss_is_what_the_best_set_of_usual_devices_falls_by_beyond_the_draw(data: st.DataObject) -> None:
    profiles = data.draw(st.sets(st.sampled_from(["2g.20gb", "3g.40gb", "4g.40gb", "whole"]), min_size=1))
    wanted, make = usual(*profiles), island().make
    state = make.untouched
    for _ in range(data.draw(st.integers(0, 3))):
        can = [at for at in range(len(make.devices)) if possible(make, state) >> at & 1]
        if not can:
            return
        at = data.draw(st.sampled_from(can))
        then = after(make, state, at, None)
        expected = most(state, wanted) - most(then, wanted) - make.devices[at].gpu_milli
        assert lost(make, state, at, wanted) == expected
        state = then


def test_an_instance_in_the_only_hole_for_a_half_loses_what_its_half_cannot_be_used_for() -> None:
    wanted, make = usual("2g.20gb", "3g.40gb"), island().make
    # Two quarters fit the lower half beside a half on the upper one; on the upper half a quarter leaves a hole.
    assert lost(make, make.untouched, place("2g-20gb-0"), wanted) == 0
    assert lost(make, make.untouched, place("2g-20gb-4"), wanted) == 250


def test_a_hole_that_nobody_asks_for_is_no_loss() -> None:
    make = island().make
    assert lost(make, make.untouched, place("2g-20gb-4"), usual("2g.20gb")) == 0
    assert lost(make, make.untouched, place("2g-20gb-4"), usual("whole")) == 750


def test_a_draw_of_what_nobody_could_have_used_is_a_gain() -> None:
    make, wanted = island().make, usual("2g.20gb")
    state = make.untouched
    for start in (0, 2, 4):
        state = after(make, state, place(f"2g-20gb-{start}"), None)
    assert lost(make, state, place("1g-10gb-6"), wanted) == -125


def test_where_nothing_is_usual_or_it_is_not_known_nothing_is_lost() -> None:
    make = island().make
    assert usual_devices(ONE, ("of another class",)) == usual_devices(ONE, ()) == 0
    assert lost(make, make.untouched, place("2g-20gb-4"), 0) == 0


def test_an_island_that_may_be_cut_in_too_many_ways_counts_nothing_whichever_state_is_asked_about_first() -> None:
    # Twenty instances with a counter each: any set of them is legal.
    devices = tuple(
        OfferedDevice(pool=0, name=f"part-{at}", uses=((0, 1), (at + 1, 1)), gpu=0, gpu_milli=50) for at in range(20)
    )
    layout = DeviceLayout(pools=(DevicePool(driver="d"),), counters=(20, *(1,) * 20), devices=devices, kinds="55" * 32)
    (found,) = islands_of(Offer(layout.digest(), layout), ())[0]
    state = found.make.untouched
    for at in range(17):
        state = after(found.make, state, at, None)
    assert {lost(found.make, state, at, (1 << 20) - 1) for at in (17, 18, 19)} == {0}
    assert len(devices) < DEVICES_MAX


def test_an_island_of_very_many_devices_is_not_looked_at() -> None:
    for count, loss in ((DEVICES_MAX, 40), (DEVICES_MAX + 1, 0)):
        # The first device is small, and in the way of all others.
        devices = tuple(
            OfferedDevice(pool=0, name=f"part-{at}", uses=((0, 1),), gpu=0, gpu_milli=50 if at else 10)
            for at in range(count)
        )
        layout = DeviceLayout(pools=(DevicePool(driver="d"),), counters=(1,), devices=devices, kinds="77" * 32)
        (found,) = islands_of(Offer(layout.digest(), layout), ())[0]
        assert lost(found.make, found.make.untouched, 0, 1 << 1) == loss


@pytest.mark.parametrize("gpus", [1, 8])
def test_devices_of_every_gpu_are_usual(gpus: int) -> None:
    offer = mig_offer(gpus)
    found = usual_devices(offer, selected_profiles("3g.40gb", "whole"))
    names = [device.name for at, device in enumerate(offer.devices) if found >> at & 1]
    assert names == [f"gpu-{gpu}-{name}" for gpu in range(gpus) for name in ("whole-0", "3g-40gb-0", "3g-40gb-4")]
    assert mig_gpus(gpus).digest() == offer.digest
