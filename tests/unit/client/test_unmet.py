"""Names of a configuration that nothing in the cluster has, and what is meant perhaps."""

from typing import Any

import pytest

from tessera.client.cluster.unmet import find_unmet
from tessera_schemas.config import Flavor, Level, Pool, Queue, Tenant
from tessera_schemas.reasons import Code
from tessera_schemas.shard.receivers import Subscriber, Webhook
from tessera_schemas.views import NodeView
from tests.builders import config_body, queue


def node(name: str = "n-0", **more: Any) -> NodeView:
    return NodeView.model_validate({"name": name, "pool": "default", "ready": True, "gpu_model": "A100", **more})


NODES = [node(), node("n-1", pool="blue", labels={"zone": "a"})]


def told(nodes: list[NodeView] | None = None, **more: Any) -> list[str]:
    found = find_unmet(config_body(**more), NODES if nodes is None else nodes)
    assert all(reason.code is Code.MEETS_NOTHING for reason in found)
    return [f"{reason.field}: {reason.detail}" for reason in found]


def test_a_configuration_whose_names_are_all_there_warns_of_nothing() -> None:
    flavors = (Flavor(name="a", gpu_models=("A100",)), Flavor(name="b", node_labels={"zone": "a"}))
    assert told(flavors=flavors, topology=(Level(name="zone", label="zone"),), pools=(Pool(name="blue"),)) == []


def test_a_pool_that_no_node_is_in_stops_a_queue_and_the_pool_that_is_meant_is_named() -> None:
    (warning,) = (str(reason) for reason in find_unmet(config_body(Queue(name="research", pool="defualt")), NODES))
    assert "queues.research.pool" in warning
    assert "is default meant?" in warning


@pytest.mark.parametrize("model", ["a100", "A10"])
def test_a_flavor_of_a_model_that_no_node_has_bounds_nothing_and_the_model_that_is_meant_is_named(model: str) -> None:
    (warning,) = told(flavors=(Flavor(name="big", gpu_models=(model,)),))
    assert f"flavors.big: no node has {model} GPUs; is A100 meant?" in warning
    assert "bound nothing" in warning


def test_a_model_is_found_in_the_longer_name_that_nodes_give_it() -> None:
    (warning,) = told([node(gpu_model="NVIDIA-A100-SXM4-80GB")], flavors=(Flavor(name="big", gpu_models=("a100",)),))
    assert "is NVIDIA-A100-SXM4-80GB meant?" in warning


def test_labels_of_flavors_and_levels_and_profiles_of_pools_are_looked_at_too() -> None:
    found = told(
        flavors=(Flavor(name="spot", node_labels={"spot": "yes"}),),
        topology=(Level(name="rack", label="rack"),),
        pools=(Pool(name="green"),),
    )
    assert [warning.partition(":")[0] for warning in found] == ["pools.green", "flavors.spot", "topology.rack"]


def test_a_pool_that_is_to_spare_as_many_nodes_as_it_has_is_warned_of() -> None:
    assert told(pools=(Pool(name="blue", spare_nodes=1),)) == [
        "pools.blue.spare_nodes: the pool has 1 nodes: while they are empty all of them are spares, and nothing starts"
    ]
    assert told([*NODES, node("n-2", pool="blue")], pools=(Pool(name="blue", spare_nodes=1),)) == []


def test_an_inner_queue_needs_no_nodes_and_a_node_that_is_gone_is_none() -> None:
    queues = (Queue(name="all", pool="green"), Queue(name="leaf", parent="all", pool="green"))
    assert [reason.field for reason in find_unmet(config_body(*queues), NODES)] == ["queues.leaf.pool"]
    assert told([node(), node("n-2", pool="blue", gone=True)], pools=(Pool(name="blue"),)) != []


def test_while_no_node_is_known_nothing_is_said() -> None:
    assert told([], flavors=(Flavor(name="big", gpu_models=("a100",)),)) == []


def test_filters_of_events_that_nothing_ever_meets_are_warned_of_whatever_nodes_there_are() -> None:
    subscriber = Subscriber(name="ci", types=("job.faild.v1", "job.failed.v1", "io.tessera.job.failed.v1"))
    webhook = Webhook(name="chat", url="https://h.example", secret="s", types=("node.v1",), queues=("nowhere",))
    body = config_body(queue("research"))
    tenant = Tenant(name="lab", subscribers=(subscriber,), webhooks=(webhook,))
    found = find_unmet(body.model_copy(update={"tenants": (tenant,)}), ())
    assert [(each.field, each.detail) for each in found] == [
        ("tenants.lab.subscribers.ci.types", "no event is of type job.faild.v1; is job.failed.v1 meant?"),
        ("tenants.lab.webhooks.chat.types", found[1].detail),
        ("tenants.lab.webhooks.chat.queues", "there is no queue nowhere; there are research"),
    ]
