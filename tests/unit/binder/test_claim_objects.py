"""The claims that Tessera makes for its pods, and how it finds those of any pod."""

import pytest

from tessera.binder.claims.decide.extended import ExtendedClaim, extended_claim
from tessera.binder.claims.decide.objects import claim_name, claim_names_of, claim_object, format_milli, named_claims
from tessera.binder.decide.pods import pod_of
from tessera.binder.decide.steps import read_pod
from tessera.binder.nodes.uses import only_what_is_read
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import (
    DeviceChoice,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    DriverConfig,
)
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.job import JobSpec, Resources, Role
from tessera_schemas.work.placement import EXTENDED_CLAIM
from tests.builders import job_spec, placement, role
from tests.unit.binder.binder_builders import RUN, api_pod, job, node, run
from tests.unit.binder.claim_builders import CLASS, DRIVER, device_claim, drawn

POD = {"metadata": {"name": "pod-0", "namespace": "lab", "uid": "u0", "labels": {"tessera.io/run": RUN}}}


def test_a_claim_has_its_pods_labels_and_goes_with_it():
    made = claim_object(POD, device_claim())
    assert made["metadata"] == {
        "name": "pod-0-gpu",
        "namespace": "lab",
        "labels": {"tessera.io/run": RUN},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pod-0", "uid": "u0", "controller": True}],
    }
    assert (made["apiVersion"], made["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")


def test_a_request_of_one_choice_is_asked_for_exactly():
    choice = DeviceChoice(
        device_class=CLASS,
        selectors=("true",),
        count=2,
        tolerations=(DeviceToleration(key="sick", operator="Exists"),),
        capacity={"memory": 1500, "cores": 2000},
    )
    assert spec_of(device_claim("gpu", choice)) == {
        "requests": [
            {
                "name": "one",
                "exactly": {
                    "deviceClassName": CLASS,
                    "allocationMode": "ExactCount",
                    "count": 2,
                    "selectors": [{"cel": {"expression": "true"}}],
                    "tolerations": [{"key": "sick", "operator": "Exists"}],
                    "capacity": {"requests": {"memory": "1500m", "cores": "2"}},
                },
            }
        ]
    }


def test_every_device_and_admin_access_are_asked_for_by_their_words():
    (request,) = spec_of(device_claim("gpu", DeviceChoice(device_class=CLASS, every=True, admin=True)))["requests"]
    assert request["exactly"] == {"deviceClassName": CLASS, "allocationMode": "All", "adminAccess": True}


def test_several_choices_stand_in_the_users_order():
    choices = tuple(DeviceChoice(name=name, device_class=name) for name in ("large", "small"))
    (request,) = spec_of(device_claim("gpu", *choices))["requests"]
    assert [each["name"] for each in request["firstAvailable"]] == ["large", "small"]
    assert "exactly" not in request


def test_constraints_and_parameters_are_carried_over():
    asked = DeviceClaim(
        name="pair",
        requests=tuple(DeviceRequest(name=n, choices=(DeviceChoice(device_class=n),)) for n in ("gpu", "nic")),
        constraints=(
            DeviceConstraint(match="resource.kubernetes.io/pcieRoot"),
            DeviceConstraint(requests=("gpu",), distinct="example.com/rack"),
        ),
        config=(DriverConfig(requests=("gpu",), driver=DRIVER, parameters={"a": 1}),),
    )
    spec = spec_of(asked)
    assert spec["constraints"] == [
        {"matchAttribute": "resource.kubernetes.io/pcieRoot"},
        {"requests": ["gpu"], "distinctAttribute": "example.com/rack"},
    ]
    assert spec["config"] == [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]


def test_the_pod_names_its_claims_and_only_its_roles_container_uses_them():
    own, shared = device_claim(), device_claim("fabric", object_name="of-all")
    pod = made_pod(role_with(own, shared))
    assert pod["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimName": f"{RUN}-0-gpu"},
        {"name": "fabric", "resourceClaimName": "of-all"},
    ]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "gpu"}, {"name": "fabric"}]


def test_a_pod_without_claims_says_nothing_of_them():
    pod = made_pod(role(gpus=0))
    assert "resourceClaims" not in pod["spec"]
    assert "claims" not in pod["spec"]["containers"][0]["resources"]


def test_a_pod_with_claims_has_shared_memory():
    (volume,) = made_pod(role_with(device_claim()))["spec"]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert made_pod(role(gpus=0))["spec"]["volumes"] == []


def test_names_of_claims_differ_between_pods():
    one, two = device_claim("1-a"), device_claim("a")
    assert claim_name("job-1-1", one) != claim_name("job-1-11", two)
    assert claim_name("pod-0", device_claim(object_name="of-all")) == "of-all"


def test_claims_of_templates_are_found_in_the_pods_status():
    pod = api_pod()
    pod["spec"]["resourceClaims"] = [
        {"name": "by-name", "resourceClaimName": "mine"},
        {"name": "made", "resourceClaimTemplateName": "t"},
        {"name": "needless", "resourceClaimTemplateName": "t"},
        {"name": "coming", "resourceClaimTemplateName": "t"},
    ]
    pod["status"]["resourceClaimStatuses"] = [
        {"name": "made", "resourceClaimName": "pod-made-x7"},
        {"name": "needless"},
    ]
    assert named_claims(pod) == {"by-name": "mine", "made": "pod-made-x7", "coming": ""}
    assert claim_names_of(pod) == ("mine", "pod-made-x7")
    assert read_pod(only_what_is_read(pod)).claims == ("mine", "pod-made-x7")


@pytest.mark.parametrize(("milli", "text"), [(0, "0"), (1000, "1"), (1500, "1500m"), (2**62, f"{2**62}m")])
def test_thousandths_are_written_exactly(milli: int, text: str):
    assert format_milli(milli) == text


def spec_of(claim: DeviceClaim) -> Json:
    devices: Json = claim_object(POD, claim)["spec"]["devices"]
    return devices


def role_with(*claims: DeviceClaim) -> Role:
    asked = Resources(cpu_milli=1000, memory_bytes=2**30, claims=claims)
    return role(gpus=0).model_copy(update={"resources": asked})


def made_pod(of: Role) -> Json:
    spec: JobSpec = job_spec(of)
    at = run(spec, places=(placement(devices=(), gpu_milli=0),))
    return pod_of(job(spec), at, 0, spec, 1, node())


def test_what_a_pod_counts_on_is_claimed_by_the_newest_class_as_decisions_draw_it():
    pod = POD | {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU_RESOURCE: "1"}}}]}}
    classes = {
        name: {
            "metadata": {"name": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"},
            "spec": {"extendedResourceName": GPU_RESOURCE},
        }
        for day, name in ((1, "a-former"), (2, "b-newest"))
    }
    found = extended_claim(pod, (drawn(claim=EXTENDED_CLAIM, request=GPU_RESOURCE),), classes)
    assert isinstance(found, ExtendedClaim)
    (request,) = found.object["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "b-newest"
