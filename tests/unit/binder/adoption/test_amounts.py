"""What a pod takes of its node: the rule of Kubernetes' own scheduler, exact, and rounded up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.adoption.decide.amounts import resources_of
from tessera_schemas.job import Resources
from tessera_schemas.reasons import Code, Reason

Json = dict[str, Any]
MIB = 2**20


def container(limits: Json | None = None, **requests: Any) -> Json:
    return {"resources": {"requests": requests, **({"limits": limits} if limits else {})}}


def taken(spec: Json, annotations: Json | None = None) -> Resources:
    found = resources_of(spec, annotations or {})
    assert not isinstance(found, Reason), found
    return Resources.model_validate(found)


def refused(spec: Json, annotations: Json | None = None) -> Reason:
    found = resources_of(spec, annotations or {})
    assert isinstance(found, Reason), found
    return found


def test_containers_are_added_up() -> None:
    found = taken({"containers": [container(cpu="1", memory="1Mi"), container(cpu="500m", memory="2Mi")]})
    assert (found.cpu_milli, found.memory_bytes) == (1500, 3 * MIB)


def test_a_pod_that_asks_for_nothing_takes_the_least_that_can_be_asked_for() -> None:
    assert taken({"containers": [{}]}) == Resources(cpu_milli=1, memory_bytes=1)


def test_a_limit_is_a_request_where_none_is_made() -> None:
    found = taken({"containers": [container({"cpu": "4", "memory": "8Mi"}, cpu="1")]})
    assert (found.cpu_milli, found.memory_bytes) == (1000, 8 * MIB)


def test_init_containers_run_alone_so_the_largest_of_them_counts() -> None:
    inits = [container(cpu="3"), container(cpu="2", memory="9Mi")]
    found = taken({"initContainers": inits, "containers": [container(cpu="1", memory="4Mi")]})
    assert (found.cpu_milli, found.memory_bytes) == (3000, 9 * MIB)


def test_a_sidecar_counts_beside_the_containers_and_beside_the_init_containers_after_it() -> None:
    sidecar = container(cpu="1") | {"restartPolicy": "Always"}
    assert taken({"initContainers": [sidecar], "containers": [container(cpu="2")]}).cpu_milli == 3000
    before = {"initContainers": [container(cpu="4"), sidecar], "containers": [container(cpu="2")]}
    assert taken(before).cpu_milli == 4000
    after = {"initContainers": [sidecar, container(cpu="4")], "containers": [container(cpu="2")]}
    assert taken(after).cpu_milli == 5000


def test_the_overhead_of_the_runtime_is_added_and_pod_level_requests_replace_the_sum() -> None:
    spec = {"containers": [container(cpu="1", memory="1Mi")], "overhead": {"cpu": "250m"}}
    assert taken(spec).cpu_milli == 1250
    whole = spec | {"resources": {"requests": {"cpu": "3"}}}
    assert (taken(whole).cpu_milli, taken(whole).memory_bytes) == (3250, MIB)


def test_what_does_not_come_out_even_is_rounded_up() -> None:
    found = taken({"containers": [container(cpu="1u", memory="1500m")]})
    assert (found.cpu_milli, found.memory_bytes) == (1, 2)


def test_gpus_and_further_devices_are_whole_numbers_and_none_of_a_kind_is_not_asked_for() -> None:
    asked = {"nvidia.com/gpu": "2", "rdma/hca": 1, "amd.com/gpu": "0"}
    found = taken({"containers": [container(**asked)]})
    assert (found.gpus, found.devices) == (2, {"rdma/hca": 1})
    assert refused({"containers": [container(**{"rdma/hca": "500m"})]}).code is Code.INVALID_FIELD


@pytest.mark.parametrize("count", [1, 3])
def test_mig_instances_of_a_pod_are_so_many_of_one_profile(count: int) -> None:
    found = taken({"containers": [container(**{"nvidia.com/mig-1g.10gb": count})]})
    assert (found.mig_profile, found.gpu_parts) == ("1g.10gb", count)
    reason = refused({"containers": [container(**{"nvidia.com/mig-1g.10gb": count, "nvidia.com/mig-3g.40gb": 1})]})
    assert (reason.code, "1g.10gb as well" in reason.detail) == (Code.NOT_SUPPORTED_YET, True)


def test_a_replica_of_each_of_several_gpus_is_refused_by_name() -> None:
    notes = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}
    reason = refused({"containers": [container(**{"nvidia.com/gpu": 1})]}, notes)
    assert (reason.code, reason.field) == (
        Code.NOT_SUPPORTED_YET,
        "metadata.annotations[gpu-fraction-num-devices]",
    )


def test_a_share_of_a_gpu_is_asked_for_by_annotation_with_its_memory() -> None:
    found = taken({"containers": [{}]}, {"tessera.io/gpu-milli": "250", "tessera.io/gpu-memory": "10Gi"})
    assert (found.gpu_milli, found.gpu_memory_bytes) == (250, 10 * 2**30)


def test_a_pod_says_the_least_isolation_of_its_gpus() -> None:
    spec = {"containers": [container(**{"nvidia.com/gpu": "1"})]}
    assert taken(spec, {"tessera.io/isolation": "hardware"}).isolation == "hardware"
    reason = refused(spec, {"tessera.io/isolation": "much"})
    assert (reason.code, reason.field) == (Code.INVALID_FIELD, "metadata.annotations[tessera.io/isolation]")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"])
def test_a_replica_of_a_gpu_is_the_share_that_the_annotation_says(resource: str) -> None:
    found = taken({"containers": [container(**{resource: "1"})]}, {"tessera.io/gpu-milli": "250"})
    assert (found.gpus, found.gpu_milli, found.gpu_resource) == (0, 250, resource)


@pytest.mark.parametrize("share", ["0", "1000", "-5", "0.5", "half", "²", "9" * 40])
def test_what_is_no_share_of_one_gpu_is_refused_by_the_name_of_the_annotation(share: str) -> None:
    reason = refused({"containers": [{}]}, {"tessera.io/gpu-milli": share})
    assert (reason.code, reason.field) == (Code.INVALID_FIELD, "metadata.annotations[tessera.io/gpu-milli]")


@pytest.mark.parametrize("name", ["hugepages-1Gi", "nvidia.com/gpu.shared", "requests.x/y"])
def test_a_resource_of_which_nobody_keeps_a_book_is_refused_by_its_name(name: str) -> None:
    reason = refused({"containers": [container(**{name: "1"})]})
    assert (reason.code, name in reason.field) == (Code.NOT_SUPPORTED_YET, True)


def test_a_nodes_own_disk_is_accepted_and_not_counted() -> None:
    own = {"ephemeral-storage": "1.5Gi"}
    assert resources_of({"containers": [container(cpu="1", **own)]}, {}) == resources_of(
        {"containers": [container(cpu="1")]}, {}
    )


@pytest.mark.parametrize("amount", ["-1", "1e99", "9" * 29, "many", "", "1 Gi", "0x10", [], {}, None, 1.5e300])
def test_an_amount_that_is_none_or_cannot_be_counted_is_refused_where_it_stands(amount: Any) -> None:
    reason = refused({"containers": [{}, container(memory=amount)]})
    assert (reason.code, reason.field) == (Code.INVALID_FIELD, "spec.containers[1].resources.requests[memory]")


CONTAINERS = st.lists(
    st.builds(
        lambda cpu, always: container(cpu=f"{cpu}m") | ({"restartPolicy": "Always"} if always else {}),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=5,
)


@given(CONTAINERS, CONTAINERS)
def test_a_pod_takes_at_every_moment_of_its_life_no_more_than_was_counted(inits: list[Json], main: list[Json]) -> None:
    def milli(each: Json) -> int:
        return int(each["resources"]["requests"]["cpu"].removesuffix("m"))

    counted = taken({"initContainers": inits, "containers": main}).cpu_milli
    beside, most = 0, 0
    for each in inits:
        most = max(most, beside + milli(each))
        beside += milli(each) if "restartPolicy" in each else 0
    most = max(most, beside + sum(map(milli, main)))
    assert counted == max(1, most)
