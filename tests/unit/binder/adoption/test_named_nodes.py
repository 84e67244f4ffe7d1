"""Users' pods that name nodes (`matchFields`): they go where their owner says, by the hostnames of those nodes."""

import pytest

from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.workloads.marks import not_honoured
from tessera.binder.workloads.node_fields import NAMES_MAX, PREFERRED, REQUIRED, by_hostnames, nodes_named_in
from tessera_schemas.base import Json
from tessera_schemas.job import Role
from tests.unit.binder.adoption.adoption_builders import pod
from tests.unit.binder.adoption.adoption_world import AdoptionWorld

HOST = "kubernetes.io/hostname"


def named(*names: str, operator: str = "In", key: str = "metadata.name") -> Json:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(names)}]}


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def test_names_of_nodes_are_said_by_their_hostnames() -> None:
    ssd = {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}
    asked = pod(affinity=required(named("a") | ssd, named("b", operator="NotIn"), ssd))
    assert nodes_named_in(asked) == ["a", "b"]
    found = role_of(by_hostnames(asked, {"a": "host-a", "b": "b"}))
    assert isinstance(found, Role), found
    lists = [[(term.key, term.operator.value, term.values) for term in terms] for terms in found.affinity_any]
    assert lists == [
        [(HOST, "In", ("host-a",)), ("ssd", "Exists", ())],
        [(HOST, "NotIn", ("b",))],
        [("ssd", "Exists", ())],
    ]


def test_a_preference_for_a_node_is_one_for_its_hostname() -> None:
    asked = pod(affinity={"nodeAffinity": {PREFERRED: [{"weight": 9, "preference": named("a")}]}})
    rewritten = by_hostnames(asked, {"a": "host-a"})
    found = role_of(rewritten)
    assert isinstance(found, Role), found
    ((term,),) = (each.terms for each in found.affinity_preferred)
    assert (term.key, term.values) == (HOST, ("host-a",))
    assert not_honoured(rewritten) == []


ODD = {
    "another field": required(named("a", key="spec.providerID")),
    "another operator": required(named("a", operator="Gt")),
    "no values": required(named()),
    "too many": required(*(named(f"node-{index}") for index in range(NAMES_MAX + 1))),
}


@pytest.mark.parametrize("affinity", ODD.values(), ids=list(ODD))
def test_other_fields_of_nodes_are_not_looked_up(affinity: Json) -> None:
    assert nodes_named_in(pod(affinity=affinity)) == []
    found = role_of(by_hostnames(pod(affinity=affinity), {"a": "a"}))
    assert not isinstance(found, Role)
    assert found.field == f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchFields"


async def test_a_pod_goes_to_the_node_that_it_names_and_another_stays_off_it() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        await world.run(3)
        world.make_pod("here", affinity=required(named("node-b")))
        world.make_pod("away", affinity=required(named("node-b", operator="NotIn")))
        await world.run(15)
        assert {name: world.owned(name)[0]["spec"].get("nodeName") for name in ("here", "away")} == {
            "here": "node-b",
            "away": "node-a",
        }
