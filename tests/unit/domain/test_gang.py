from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Amount, Need, RoleNeed
from tessera.domain.storing.statehash import encode
from tessera.domain.work.gang import Gang, gang_of
from tessera_schemas.work.placement import Placement
from tests.unit.engine.engine_builders import node

WORKER = RoleNeed("worker", 2, Need(cpu_milli=4000, memory_bytes=2**30, gpus=1))
LEADER = RoleNeed("leader", 1, Need(cpu_milli=1000, memory_bytes=2**20, gpu_milli=500))
ROLES = (LEADER, WORKER)
PLACED = (
    Placement(0, "leader", "a", (0,), 500),
    Placement(1, "worker", "a", (1,), 1000),
    Placement(2, "worker", "b", (0,), 1000),
)


def test_a_gang_knows_its_pods_needs_and_amount() -> None:
    gang = gang_of(ROLES)
    assert (gang.pods, gang.need_of["leader"]) == (3, LEADER.need)
    assert gang.amount == gang.amount_of(PLACED) == Amount(9000, 2 * 2**30 + 2**20, 2500)


def test_equal_roles_are_one_gang_that_equals_them() -> None:
    gang = gang_of((LEADER, WORKER))
    assert gang is gang_of(ROLES) is gang_of(gang)
    assert gang == ROLES
    assert hash(gang) == hash(ROLES)


def test_a_gang_is_stored_as_its_roles() -> None:
    assert encode([Gang(ROLES)]) == encode([ROLES])


@given(st.permutations(PLACED))
def test_what_a_gang_took_it_gives_back_in_any_order(back: list[Placement]) -> None:
    before = {name: node(name, gpus=2) for name in "abc"}
    nodes = dict(before)
    gang_of(ROLES).take(nodes, PLACED)
    assert nodes["a"].gpu_free == (500, 0)
    assert nodes["c"] is before["c"]
    gang_of(ROLES).take(nodes, back, -1)
    assert nodes == before


def test_nodes_that_are_not_there_are_passed_over() -> None:
    nodes = {"b": node("b", gpus=2)}
    gang_of(ROLES).take(nodes, PLACED)
    assert list(nodes) == ["b"]
