"""A spec with one change: that field alone is another, and what no job may be is refused."""

import pytest

from tessera.domain.devices.resources import role_need
from tessera.engine.explain.changed_spec import KINDS, changed_spec, differences
from tessera_schemas.job import AffinityTerm, JobSpec, Topology
from tests.builders import job_spec, role

RULES = {
    "gpu_models": ("a100",),
    "node_selector": {"disk": "ssd"},
    "affinity": (AffinityTerm(key="zone", operator="Exists"),),
}
NEAR = role("near", replicas=4, gpus=8).model_copy(update={**RULES, "topology": Topology(level="rack")})
WIDE = role("wide", replicas=2, gpus=4).model_copy(update={"spread": "rack"})
SHARE = role("share", gpus=0, gpu_milli=500)
BESIDE = role("beside", replicas=4, gpus=0).model_copy(update={"same_node_as": "near"})
SPEC = JobSpec.model_validate(job_spec(NEAR, WIDE, SHARE, BESIDE).model_dump())


@pytest.mark.parametrize(
    ("kind", "about", "value", "field", "after"),
    [
        ("queue", "", "other", "queue", "other"),
        ("class", "", "high", "priority_class", "high"),
        ("cpu", "near", "500", "roles.near.resources.cpu_milli", 500),
        ("memory", "near", "1048576", "roles.near.resources.memory_bytes", 1_048_576),
        ("gpus", "near", "3", "roles.near.resources.gpus", 3),
        ("share", "share", "250", "roles.share.resources.gpu_milli", 250),
        ("pods", "wide", "1", "roles.wide.replicas", 1),
        ("model", "", "", "roles.near.gpu_models", []),
        ("topology", "", "", "roles.near.topology", None),
        ("spread", "", "", "roles.wide.spread", None),
        ("together", "", "", "roles.beside.same_node_as", None),
        ("selector", "", "", "roles.near.node_selector", {}),
        ("affinity", "", "", "roles.near.affinity", []),
    ],
    ids=lambda value: str(value) or "-",
)
def test_each_kind_of_change_sets_its_field_and_no_other(
    kind: str, about: str, value: str, field: str, after: object
) -> None:
    assert kind in KINDS
    (found,) = differences(SPEC, changed_spec(SPEC, kind, about, value))
    assert (found.field, found.after) == (field, after)
    assert found.before != after


def test_fewer_pods_of_an_elastic_role_are_fewer_to_start_with() -> None:
    elastic = role("worker", replicas=4, gpus=1).model_copy(update={"min_replicas": 3, "max_replicas": 8})
    changed = changed_spec(job_spec(elastic), "pods", "worker", "2").roles[0]
    assert (changed.min_replicas, changed.replicas, changed.max_replicas) == (2, 4, 8)
    assert role_need(changed).replicas == 2


@pytest.mark.parametrize(
    ("kind", "about", "value"),
    [("evict", "", ""), ("gpus", "nobody", "1"), ("gpus", "near", "many"), ("pods", "near", "0"), ("queue", "", "A B")],
)
def test_what_is_no_change_or_makes_no_job_is_refused(kind: str, about: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        changed_spec(SPEC, kind, about, value)
