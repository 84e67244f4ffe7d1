"""What is refused when a configuration is applied, though the reader of stored ones takes it: nobody could serve it."""

from typing import Any

import pytest

from tessera.admission.decide.configuration import find_config_faults
from tessera.client.views.queues import in_tree
from tessera_schemas.base import INT_MAX
from tessera_schemas.config import ConfigBody
from tessera_schemas.shard.bounds import DEPTH_MAX, SUBSCRIBERS_MAX
from tessera_schemas.views import QueueView


def body(**more: Any) -> ConfigBody:
    return ConfigBody.model_validate({"tenants": [{"name": "lab"}], "queues": [{"name": "q"}], **more})


def chain(depth: int) -> list[dict[str, Any]]:
    """Queues below each other."""
    return [{"name": f"q{at}", **({"parent": f"q{at - 1}"} if at else {})} for at in range(depth)]


def against(found: ConfigBody) -> list[str]:
    return [reason.field for reason in find_config_faults(found)]


def test_a_tree_of_900_queues_below_each_other_is_refused_by_its_deepest_queues() -> None:
    assert against(body(queues=chain(DEPTH_MAX))) == []
    assert against(body(queues=chain(DEPTH_MAX + 1))) == [f"queues.q{DEPTH_MAX}.parent"]
    refused = find_config_faults(body(queues=chain(900)))
    assert refused[0].field == f"queues.q{DEPTH_MAX}.parent"
    assert refused[0].numbers == {"depth": DEPTH_MAX + 1, "depth_max": DEPTH_MAX}
    assert len(refused) == 1  # the first says it; 883 more would say it again


@pytest.mark.parametrize(
    "name", ["kube-system", "kube-public", "kube-node-lease", "kube-anything", "tessera-system", "admission", "tenant"]
)
def test_a_tenant_with_the_name_of_a_system_namespace_is_refused(name: str) -> None:
    assert against(body(tenants=[{"name": name}])) == [f"tenants.{name}.name"]


def test_names_that_only_resemble_those_of_systems_are_not_refused() -> None:
    assert against(body(tenants=[{"name": name} for name in ("default", "kube", "kubernetes", "kubeflow")])) == []


def test_priority_classes_without_the_one_that_jobs_have_by_default_are_refused() -> None:
    (reason,) = find_config_faults(body(priority_classes=[{"name": "gold", "value": 1}]))
    assert (reason.field, "normal" in reason.detail) == ("priority_classes", True)


def test_quotas_that_no_number_of_the_views_could_hold_together_are_refused() -> None:
    quota = {"resource": "memory_bytes", "nominal": INT_MAX // 2 + 1}
    two = [{"name": name, "parent": "all", "quotas": [quota]} for name in ("a", "b")]
    assert against(body(queues=[{"name": "all"}, *two])) == ["queues.all.quotas.memory_bytes"]
    assert against(body(queues=[{"name": "all"}, two[0]])) == []


def test_more_subscribers_than_the_server_keeps_well_are_refused() -> None:
    each = [{"name": f"s{at}"} for at in range(32)]
    tenants = [{"name": f"t{at}", "subscribers": each} for at in range(SUBSCRIBERS_MAX // 32 + 1)]
    assert against(body(tenants=tenants[:-1])) == []
    assert against(body(tenants=tenants)) == ["tenants"]


def test_a_subscriber_to_what_is_no_event_type_is_refused_before_it_is_in_force() -> None:
    tenant = {"name": "lab", "subscribers": [{"name": "ci", "types": ["..v1"]}]}
    assert against(body(tenants=[tenant])) == ["tenants.lab.subscribers.ci.types"]


def test_the_table_of_queues_is_drawn_at_any_depth_that_is_accepted() -> None:
    rows = [QueueView(name=queue["name"], pool="default", parent=queue.get("parent", "")) for queue in chain(DEPTH_MAX)]
    assert [row.name for row in in_tree(rows)] == [queue["name"] for queue in chain(DEPTH_MAX)]
