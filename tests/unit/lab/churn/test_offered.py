"""What arrives: at the load that was asked for, and the same for the same seed."""

import numpy as np
import pytest

from tessera.kernel.errors import StartupError
from tessera_lab.churn.arrivals import HOUR_MS
from tessera_lab.churn.offered import offer, offered_percent
from tests.unit.lab.churn.made import mixed

DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize("load", [80, 95, 100])
def test_the_load_offered_is_the_load_asked_for_from_the_first_moment_on(load: int) -> None:
    made = mixed()
    gpu_milli = np.array([pod.total_gpu_milli for pod in made.trace.pods])
    found = [
        offered_percent(offer(made, load, seed, 20 * DAY_MS), gpu_milli, made.trace.gpu_milli, first, 20 * DAY_MS)
        for seed in range(8)
        for first in (0, 10 * DAY_MS)
    ]
    assert sum(found) / len(found) == pytest.approx(load, rel=0.01)
    assert all(each == pytest.approx(load, rel=0.05) for each in found)


def test_every_pass_brings_every_pod_once() -> None:
    made = mixed()
    offered = offer(made, 90, 1, 2 * DAY_MS)
    later = offered.at_ms > 0
    of_pass = offered.at_ms[later] // offered.pass_ms
    whole = 2 * DAY_MS // offered.pass_ms
    for number in range(whole):
        pods = offered.pod[later][of_pass == number]
        assert sorted(pods.tolist()) == list(range(len(made.life_s)))


def test_those_that_run_at_the_start_come_first_and_have_part_of_their_lifetime_left() -> None:
    made = mixed()
    offered = offer(made, 90, 1, DAY_MS)
    life = np.array(made.life_s)[offered.pod] * 1000
    at_start = offered.at_ms == 0
    assert 0 < at_start.sum() < len(at_start)
    assert (np.diff(offered.at_ms) >= 0).all()
    assert ((offered.life_ms > 0) & (offered.life_ms <= life)).all()
    ages = (life - offered.life_ms)[at_start]
    assert (np.diff(ages) <= 0).all()


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    one, same, other = (offer(mixed(), 95, seed, DAY_MS) for seed in (1, 1, 2))
    assert one.at_ms.tobytes() == same.at_ms.tobytes()
    assert one.pod.tobytes() == same.pod.tobytes()
    assert one.at_ms.tobytes() != other.at_ms.tobytes()


def test_more_arrivals_than_a_run_can_hold_are_refused_before_they_are_made() -> None:
    with pytest.raises(StartupError, match="ask for fewer --days"):
        offer(mixed(), 100, 1, 10**6 * DAY_MS)
