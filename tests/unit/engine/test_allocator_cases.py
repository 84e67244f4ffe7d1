"""The facts of Kubernetes' own allocator cases hold for draws."""

import pytest

from tessera.engine.claims.drawing import NO_OFFER, FreeOffer, draw
from tessera.engine.claims.shortages import Shortage
from tests.unit.engine.allocator_cases import CASES, Case
from tests.unit.engine.device_builders import offer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_kubernetes_allocates_is_drawn(case: Case) -> None:
    offered = offer(case.devices, case.counters, case.selected, case.errors) if case.devices else NO_OFFER
    free = FreeOffer(offered, tuple(case.tainted), tuple(case.taken), case.incomplete)
    found = draw(free, tuple(case.claims))
    if case.expected is None:
        assert isinstance(found, Shortage)
        return
    assert not isinstance(found, Shortage), found
    had: dict[str, list[int]] = {}
    for each in found:
        had.setdefault(f"{each.claim}:{each.request}", []).append(each.index)
    assert had.keys() == case.expected.keys()
    for name, devices in case.expected.items():
        assert len(had[name]) == devices if isinstance(devices, int) else had[name] == [*devices]
    parts = {f"{each.claim}:{each.request}": dict(each.capacity).get("c0") for each in found}
    assert {name: parts[name] for name in case.parts} == case.parts
