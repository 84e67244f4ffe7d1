"""Receivers of events: each type of event that there is may be asked for."""

import pytest

from tessera_schemas.events import short_types
from tessera_schemas.shard.receivers import Subscriber, Webhook


@pytest.mark.parametrize("wanted", short_types())
def test_each_type_of_event_may_be_named(wanted: str) -> None:
    assert Subscriber(name="ci", types=(wanted,)).types == (wanted,)
    assert Webhook(name="chat", url="https://chat.example.com/hook", secret="chat", types=(wanted,)).types == (wanted,)
