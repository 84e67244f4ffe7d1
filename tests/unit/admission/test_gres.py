"""Slurm's generic resources that the configuration names: jobs get claims on devices of their class."""

from typing import Any

import pytest

from tessera_schemas.cluster.device_claims import GresClass
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.job import JobSpec
from tests.builders import config_body
from tests.unit.admission.admission_world import SPEC, World, changed

FAST = 'device.attributes["gpu.example.com"].model == "a100"'
GRES = (
    GresClass(name="gpu:a100", device_class="gpu.nvidia.com", selectors=(FAST,)),
    GresClass(name="nic", device_class="dra.net"),
)


def asks(gres: dict[str, int], **resources: Any) -> dict[str, Any]:
    role = SPEC["roles"][0]
    models = resources.pop("gpu_models", [])
    asked = {"cpu_milli": 1000, "memory_bytes": 2**30, "gres": gres, **resources}
    return changed("spec.roles.0", role | {"resources": asked, "gpu_models": models})


async def judged(gres: dict[str, int], **resources: Any) -> JobAdmitted | JobRefused:
    world = await World.with_policy(config_body(gres=GRES))
    await world.submits(asks(gres, **resources))
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted | JobRefused)
    return fact


async def test_a_generic_resource_becomes_a_claim_on_devices_of_its_class() -> None:
    asked: dict[str, Any] = {"gres": {"nic": 2, "gpu:a100": 4}, "gpus": 4, "gpu_models": ["a100"]}
    fact = await judged(**asked)
    assert isinstance(fact, JobAdmitted)
    (role,) = fact.spec.roles
    (claim,) = role.resources.claims
    (gpu, nic) = (request.choices[0] for request in claim.requests)
    assert (gpu.device_class, gpu.selectors, gpu.count) == ("gpu.nvidia.com", (FAST,), 4)
    assert (nic.device_class, nic.selectors, nic.count) == ("dra.net", (), 2)
    assert (role.resources.gpus, role.gpu_models, role.resources.gres) == (0, (), {})
    assert (
        fact.asked
        == JobSpec.model_validate(asks({"nic": 2, "gpu:a100": 4}, gpus=4, gpu_models=["a100"])["spec"]).digest()
    )


async def test_gpus_that_the_configuration_does_not_name_stay_as_they_are() -> None:
    fact = await judged({"gpu:h100": 4}, gpus=4, gpu_models=["h100"])
    assert isinstance(fact, JobAdmitted)
    (role,) = fact.spec.roles
    assert (role.resources.gpus, role.gpu_models, role.resources.gres, role.resources.claims) == (4, ("h100",), {}, ())


@pytest.mark.parametrize(
    ("gres", "why"),
    [
        ({"fpga": 1}, "fpga:1: the configuration has no such generic resource; there are: gpu:a100, nic"),
        ({"gpu:h100": 1}, "gpu:h100:1: the configuration has no such generic resource; there are: gpu:a100, nic"),
        ({"nic": 33}, "nic:33: a request is of at most 32"),
    ],
    ids=["unknown", "a GPU that no field says", "too many"],
)
async def test_what_the_configuration_does_not_name_is_refused_by_name(gres: dict[str, int], why: str) -> None:
    fact = await judged(gres)
    assert isinstance(fact, JobRefused)
    assert [(r.field, r.detail) for r in fact.reasons] == [("roles[0].resources.gres", why)]
