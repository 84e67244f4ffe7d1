"""Promised starts in a made month: every one that was made is kept, or said to be broken, and why."""

from tessera_lab.promises import PromisedMonth, SimulatedMonth

MONTH = PromisedMonth(nodes=6, days=1, promises_a_day=16, mean_days=4, back_hours=2)


def test_a_day_with_failing_nodes_keeps_what_was_promised() -> None:
    found = SimulatedMonth(MONTH, 2).run()
    ended = found.ends["kept"] + found.ends["broken"] + found.ends["dropped"]
    assert 5 <= ended <= found.ends["made"]
    assert found.ends["made"] + found.ends["refused"] == found.ends["asked"]
    assert found.ends["broken"] == found.reasons.total()
    assert found.ends["kept"] >= 0.9 * ended
