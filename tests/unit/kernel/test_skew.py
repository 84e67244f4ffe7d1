"""How far a process's clock is from the ledger's, as messages that have just been written show it."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tessera.kernel.ledger.timestamps import Skew
from tessera.kernel.service.context import Ports
from tessera.kernel.service.metrics import Metrics
from tests.virtual_time import VirtualClock


class World:
    def __init__(self) -> None:
        self.clock, self.metrics = VirtualClock(), Metrics("reclamation")
        self.skew = Skew(cast(Ports, self))
        self.seconds: Any = lambda: self.metrics.registry.get_sample_value("tessera_clock_skew_seconds")

    def hear(self, *delays: float, ahead: float = 0.0) -> list[str]:
        with capture_logs() as logs:
            for delay in delays:
                self.clock.now += 1
                self.skew.note(self.clock.now_ms() - round((ahead + delay) * 1000))
        return [entry["event"] for entry in logs]


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_clock_that_is_wrong_is_told_once_and_measured(ahead: float) -> None:
    world = World()
    assert world.hear(0.1, 0.1, 0.3, 0.2, ahead=ahead) == ["clock_skewed"]
    assert world.seconds() == pytest.approx(ahead + 0.1, abs=0.01)
    assert world.hear(*[0.1] * 16) == ["clock_right_again"]


def test_messages_that_come_late_are_no_skew() -> None:
    world = World()
    assert world.hear(40.0, 0.1, 30.0, 0.1) == []
    assert world.seconds() == pytest.approx(0.1, abs=0.01)


def test_two_messages_say_nothing_yet() -> None:
    world = World()
    assert world.hear(40.0, 40.0) == []
