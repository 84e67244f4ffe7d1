"""What a job may say about where its pods go: what contradicts itself is refused, naming the field."""

from typing import Any

import pytest
from pydantic import ValidationError

from tessera_schemas.cluster.resource_kinds import is_device
from tessera_schemas.job import JobIdle, JobSpec
from tests.builders import job_spec, role


def spec(*roles: dict[str, Any], **resources: Any) -> dict[str, Any]:
    """A job as it is sent; `resources` are those of every role."""
    asked = {"cpu_milli": 1, "memory_bytes": 1, **resources}
    made = [{"name": f"r{at}", "resources": asked, "template": {"image": "a"}, **role} for at, role in enumerate(roles)]
    return {"name": "job", "queue": "q", "roles": made}


def beside(replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "same_node_as": "r0", **more}


def sharing(
    replicas: int = 1, device_class: str = "gpu", object_name: str = "", gpu_milli: int = 0, **more: Any
) -> dict[str, Any]:
    """A role with a claim that its pods, and those of other such roles, share."""
    requests = [{"name": "one", "choices": [{"device_class": device_class}]}]
    claim = {"name": "fabric", "shared": True, "requests": requests, "object_name": object_name}
    resources = {"cpu_milli": 1, "memory_bytes": 1, "gpu_milli": gpu_milli, "claims": [claim]}
    return {"replicas": replicas, "resources": resources, **more}


GROUPED = {"level": "rack", "group": "g"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a profile that no GPU has": (spec({}, mig_profile="5g.5gb"), "mig_profile"),
    "an instance and a whole GPU": (spec({}, mig_profile="1g.5gb", gpus=1), "mig_profile"),
    "a share and a whole GPU": (spec({}, gpu_milli=500, gpus=1), "gpu_milli"),
    "memory of no GPU": (spec({}, gpu_memory_bytes=1), "gpu_memory_bytes"),
    "memory of an instance": (spec({}, gpu_memory_bytes=1, mig_profile="1g.5gb"), "gpu_memory_bytes"),
    "whole GPUs past their quota": (spec({}, devices={"nvidia.com/gpu": 1}), "devices"),
    "instances past the quota": (spec({}, devices={"nvidia.com/mig-1g.5gb": 1}), "devices"),
    "memory as a device": (spec({}, devices={"memory": 1}), "devices"),
    "a resource of Kubernetes": (spec({}, devices={"example.kubernetes.io/x": 1}), "devices"),
    "no device at all": (spec({}, devices={"rdma/hca": 0}), "rdma/hca"),
    "In without values": (spec({"affinity": [{"key": "a", "operator": "In"}]}), "values"),
    "Exists with a value": (spec({"affinity": [{"key": "a", "operator": "Exists", "values": ["x"]}]}), "values"),
    "a toleration of every value with one": (
        spec({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}),
        "tolerations",
    ),
    "a level twice": (spec({"topology": {"level": "rack", "wider": ["rack"]}}), "wider"),
    "five levels": (spec({"topology": {"level": "a", "wider": ["b", "c", "d", "e"]}}), "wider"),
    "beside a role that is not there": (spec({}, {"same_node_as": "r7"}), "roles[1].same_node_as"),
    "beside itself": (spec({"same_node_as": "r0"}), "roles[0].same_node_as"),
    "beside one that is beside another": (spec({}, beside(), {"same_node_as": "r1"}), "roles[2].same_node_as"),
    "more pods than there are to be beside": (spec({}, beside(2)), "roles[1].same_node_as"),
    "beside some of the pods that are spread": (
        spec({"replicas": 2, "spread": "zone"}, beside()),
        "roles[1].same_node_as",
    ),
    "beside more pods than are sure to be there": (
        spec({"min_replicas": 1, "replicas": 4}, beside(2)),
        "roles[1].same_node_as",
    ),
    "a share beside a whole GPU": (
        spec({}, beside(resources={"cpu_milli": 1, "memory_bytes": 1, "gpu_milli": 5}), gpus=1),
        "roles[1].same_node_as",
    ),
    "beside another role and in a domain of its own": (spec({}, beside(topology={"level": "rack"})), "same_node_as"),
    "a group that does not agree": (
        spec({"topology": GROUPED}, {"topology": {**GROUPED, "required": False}}),
        "roles[1].topology",
    ),
    "a skew of nothing": (spec({"max_skew": 2}), "max_skew: goes with spread"),
    "pods that share a claim and are spread": (spec(sharing(2, spread="zone")), "roles[0]: pods that share a claim"),
    "pods that share a claim beside others": (spec({"replicas": 2}, sharing(2, same_node_as="r0")), "roles[1]: pods"),
    "others beside pods that share a claim": (spec(sharing(2), beside(2)), "roles[0]: pods that share a claim"),
    "more pods than may use a claim": (spec(sharing(256), sharing()), "shared by 257 pods"),
    "a claim that is shared and differs": (spec(sharing(), sharing(device_class="nic")), "is shared and differs"),
    "pods that share a claim in two domains": (spec(sharing(), sharing(topology=GROUPED)), "roles[1].topology"),
    "pods that share a claim and shares of GPUs": (spec(sharing(2, gpu_milli=500)), "no share and no MIG instance"),
    "a shared claim that stands in the cluster": (spec(sharing(object_name="mine")), "shared: a claim that stands"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_contradicts_itself_is_refused_and_the_field_named(sentence: str) -> None:
    sent, field = WRONG[sentence]
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(sent)
    errors = [".".join(str(step) for step in error["loc"]) + " " + error["msg"] for error in caught.value.errors()]
    assert any(field in error for error in errors)


def test_what_lies_together_in_every_legal_way_is_accepted() -> None:
    job_spec(
        role("ps", topology={"level": "rack", "wider": ("fabric", "zone", "region"), "group": "g"}, replicas=2),
        role("worker", topology={"level": "rack", "wider": ("fabric", "zone", "region"), "group": "g"}, replicas=4),
        role("loader", same_node_as="worker", replicas=3),
        role("server", spread="zone", gpu_memory_bytes=1, devices={"rdma/hca": 2}),
        role("picky", affinity=({"key": "rack", "operator": "NotIn", "values": ("r1",)},)),
    )


def test_a_mig_instance_counts_as_the_part_of_a_gpu_that_it_takes_at_most() -> None:
    assert job_spec(role(gpus=0, mig_profile="3g.20gb", replicas=3)).gpu_milli() == 1500


@pytest.mark.parametrize("name", ["rdma/hca", "nvidia.com/hostdev", "vpc.amazonaws.com/efa", "example.com/fpga"])
def test_further_devices_have_the_names_that_nodes_give_them(name: str) -> None:
    assert is_device(name)


def test_a_field_that_came_later_is_written_where_it_says_something_and_nowhere_else() -> None:
    plain, named = (JobSpec.model_validate(spec({}) | more) for more in ({}, {"user": "ada"}))
    assert b'"user"' not in plain.to_bytes()
    assert b'"user":"ada"' in named.to_bytes()
    assert JobSpec.model_validate_json(named.to_bytes()) == named
    assert plain.digest() != named.digest()


def test_a_jobs_idle_rule_is_stored_and_an_absent_one_adds_no_bytes() -> None:
    said = job_spec(idle=JobIdle(allow_idle=True, busy_percent=10, warn_seconds=7200))
    assert b'"idle":{"allow_idle":true,"busy_percent":10,"warn_seconds":7200}' in said.to_bytes()
    assert type(said).model_validate_json(said.to_bytes()) == said
    assert b"idle" not in job_spec().to_bytes()
