"""Device profiles in the contract: what each serves, and what a configuration may say of them."""

import pytest
from pydantic import ValidationError

from tessera_schemas.cluster.devices import NAMES_ITS_CARDS, SERVES, serves, steers_devices
from tessera_schemas.cluster.mig import GEOMETRIES, milli_at
from tessera_schemas.config import Pool
from tests.builders import config_body, role


def test_only_a_profile_that_owns_all_devices_of_its_node_serves_whole_gpus_and_shares() -> None:
    both = {profile for profile, kinds in SERVES.items() if {"whole", "share"} <= kinds}
    assert both == {"plugin", "visible-devices", "hami"}
    assert both >= NAMES_ITS_CARDS
    assert all(kinds == {"instance"} for kinds in SERVES.values() if "instance" in kinds)


def test_a_profile_that_this_build_does_not_know_serves_nothing() -> None:
    assert not any(serves("magic", kind) for kind in ("whole", "share", "instance"))


@pytest.mark.parametrize(
    "pools",
    [({"name": "a", "device_profile": "magic"},), ({"name": "a"}, {"name": "a"}), ({"name": "a", "gpus": 1},)],
    ids=["a profile that nobody knows", "a pool twice", "a field that is none"],
)
def test_a_configuration_that_says_of_a_pool_what_cannot_be_is_refused(pools: tuple[dict[str, object], ...]) -> None:
    with pytest.raises(ValidationError, match="pools"):
        config_body(pools=pools)
    assert config_body(pools=(Pool(name="a", device_profile="mig"), Pool(name="b"))).pools[1].device_profile is None


def test_a_job_uses_gpus_in_one_way_and_names_an_instance_as_its_node_does() -> None:
    assert [role(**asked).resources.kind for asked in ({"gpus": 2}, {"gpus": 0, "gpu_milli": 5})] == ["whole", "share"]
    cut = role(gpus=0, mig_profile="1g.10gb", devices={"rdma/hca": 1}).resources
    assert (cut.kind, cut.extended) == ("instance", {"rdma/hca": 1, "nvidia.com/mig-1g.10gb": 1})
    assert role(gpus=0).resources.kind is None


@pytest.mark.parametrize(
    ("name", "steers"),
    [
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("nvidia_visible_devices", True),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", True),
        ("CUDA_DISABLE_CONTROL", True),
        ("CUDA_VISIBLE_DEVICES", False),
        ("NVIDIA_DRIVER_CAPABILITIES", False),
    ],
)
def test_what_would_show_a_container_other_devices_is_not_the_jobs_to_say(name: str, steers: bool) -> None:
    assert steers_devices(name) is steers


def test_an_instance_takes_its_slices_where_it_may_begin_and_nothing_elsewhere() -> None:
    for name, geometry in GEOMETRIES.items():
        for profile, shape in geometry.profiles.items():
            expected = shape.size * 1000 // geometry.slices
            assert all(milli_at(name, profile, (start, shape.size)) == expected for start in shape.starts)
            assert milli_at(name, profile, (shape.starts[-1] + 1, shape.size)) == -1
            assert milli_at(name, profile, None) == milli_at("", profile, (0, shape.size)) == -1
