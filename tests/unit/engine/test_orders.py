"""Each order of a queue stands in a module of its own: what it does, what it says, and what checkers hold it to."""

from typing import get_args

import pytest

from tessera.engine.explain import order_reasons
from tessera.engine.queueing.orders import ORDERS, JobOrder, age
from tessera_schemas.config import OVERTAKING, OrderName
from tests.rounds import Rounds


def test_every_order_of_the_contract_is_there_and_gives_its_reasons():
    assert set(ORDERS) == set(get_args(OrderName))
    assert set(get_args(OrderName)) >= OVERTAKING
    assert all(order.before for order in ORDERS.values())


def test_a_third_order_is_explained_in_its_own_words(monkeypatch: pytest.MonkeyPatch):
    last = JobOrder(age.order, ("younger",), lambda state, job, other: "younger", lambda state, job: iter(["Last in."]))
    monkeypatch.setitem(order_reasons.ORDERS, "age", last)
    rounds = Rounds()
    first, second = rounds.submit("first"), rounds.submit("second")
    state = rounds.state
    job, other = state.jobs.get(second), state.jobs.get(first)
    assert job is not None
    assert other is not None
    assert order_reasons._why(state, job, other) == "younger"
    assert list(order_reasons.describe_order(state, job)) == ["Last in."]
