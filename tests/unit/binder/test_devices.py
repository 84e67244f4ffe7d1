"""What a pod is given, by its node's device profile: exactly the devices of its placement, or nothing and why."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tessera.binder.decide import hami
from tessera.binder.decide.devices import NoDevice, at_bind
from tessera.binder.decide.pods import pod_of
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec, Template
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement
from tests.builders import job_spec, role
from tests.unit.binder.binder_builders import job, node, run

A, B, C = "GPU-a", "GPU-b", "GPU-c"
MIB = 2**20
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CARDS = {"gpu_uuids": (A, B, C), "gpu_memory_bytes": 81_559 * MIB}
VISIBLE = node("visible-devices", 3, **CARDS)
HAMI = node("hami", 3, **CARDS)
MIG = node("mig", 1, mig_geometry="80gb", mig_instances={"1g.10gb": 7})


def placed(devices: Sequence[int] = (0,), milli: int = 1000, mig: tuple[int, int] | None = None) -> Placement:
    return Placement(0, "worker", "node-a", tuple(devices), milli, mig)


def pod(where: Any, place: Placement, env: dict[str, str] | None = None, **asked: Any) -> Json:
    wanted = role(**{"gpus": 0, **asked}).model_copy(update={"template": Template(image="train:1", env=env or {})})
    spec: JobSpec = job_spec(wanted)
    return pod_of(job(spec), run(spec, places=(place,)), 0, spec, 7, where)


def limits(made: Json) -> dict[str, str]:
    """But for CPU and memory."""
    (container,) = made["spec"]["containers"]
    return {name: amount for name, amount in container["resources"]["limits"].items() if "/" in name}


def shown(made: Json) -> str | None:
    (container,) = made["spec"]["containers"]
    return next((e["value"] for e in container["env"] if e["name"] == "NVIDIA_VISIBLE_DEVICES"), None)


GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
GIVEN = {
    "whole GPUs of the stock plugin": (pod(node("whole"), placed((0, 5)), gpus=2), {GPU: "2"}, None),
    "a share of a plugin that reads what we say": (pod(node("shares"), placed((3,), 250), gpu_milli=250), {}, None),
    "whole cards by UUID": (pod(VISIBLE, placed((0, 2)), gpus=2), {}, f"{A},{C}"),
    "a share of a card by UUID": (pod(VISIBLE, placed((1,), 250), gpu_milli=250), {}, B),
    "whole cards of HAMi": (
        pod(HAMI, placed((0, 2)), gpus=2),
        {GPU: "2", MEMORY: "81559", CORES: "100"},
        None,
    ),
    "a share of HAMi's, rounded down": (
        pod(HAMI, placed((1,), 333), gpu_milli=333),
        {GPU: "1", MEMORY: "27159", CORES: "33"},
        None,
    ),
    "several shares of HAMi's, each of a card": (
        pod(HAMI, placed((0, 2), 333), gpu_milli=333, gpu_parts=2),
        {GPU: "2", MEMORY: "27159", CORES: "33"},
        None,
    ),
    "several shares of cards by UUID": (pod(VISIBLE, placed((0, 2), 250), gpu_milli=250, gpu_parts=2), {}, f"{A},{C}"),
    "cores of HAMi's are never 0, which is no limit": (
        pod(HAMI, placed((1,), 9), gpu_milli=9),
        {GPU: "1", MEMORY: "734", CORES: "1"},
        None,
    ),
    "an instance": (pod(MIG, placed((0,), 125, (0, 1)), mig_profile="1g.10gb"), {"nvidia.com/mig-1g.10gb": "1"}, None),
    "several instances": (
        pod(MIG, placed((0, 0), 125, (0, 1)), mig_profile="1g.10gb", gpu_parts=2),
        {"nvidia.com/mig-1g.10gb": "2"},
        None,
    ),
    "nothing": (pod(VISIBLE, placed((), 0)), {}, "void"),
    "further devices beside a share": (
        pod(VISIBLE, placed((1,), 250), gpu_milli=250, devices={"rdma/hca": 2}),
        {"rdma/hca": "2"},
        B,
    ),
}


@pytest.mark.parametrize(("made", "resources", "cards"), GIVEN.values(), ids=GIVEN)
def test_a_pod_asks_for_and_sees_what_its_placement_says(made: Json, resources: Any, cards: str | None) -> None:
    assert (limits(made), shown(made)) == (resources, cards)


NOT_GIVEN = {
    "a slot whose card the node does not name": (VISIBLE, placed((3,)), {"gpus": 1}),
    "a node that names no cards": (node("visible-devices", 3), placed((0,)), {"gpus": 1}),
    "HAMi's card of unknown memory": (node("hami", 1, gpu_uuids=(A,)), placed((0,), 500), {"gpu_milli": 500}),
    "a share of a whole card": (node("whole"), placed((0,), 500), {"gpu_milli": 500}),
    "a whole card of one that is cut": (MIG, placed((0,)), {"gpus": 1}),
    "an instance that nobody made": (MIG, placed((0,), 500, (0, 4)), {"mig_profile": "3g.40gb"}),
    "a node that is gone": (None, placed((0,)), {"gpus": 1}),
}


@pytest.mark.parametrize(("where", "place", "asked"), NOT_GIVEN.values(), ids=NOT_GIVEN)
def test_nothing_is_given_on_a_guess(where: Any, place: Placement, asked: dict[str, Any]) -> None:
    with pytest.raises(NoDevice) as refused:
        pod(where, place, **asked)
    reason = refused.value.reason
    assert (reason.code, reason.field, reason.numbers) == (Code.DEVICE_UNKNOWN, "nodes.node-a.devices", {"rank": 0})


def test_a_job_cannot_show_itself_other_cards_or_take_its_limits_off() -> None:
    hostile = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "CUDA_DISABLE_CONTROL": "true",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "80000m",
        "CUDA_DEVICE_SM_LIMIT": "100",
        "MINE": "1",
    }
    for where in (VISIBLE, HAMI, node("whole")):
        (container,) = pod(where, placed(), env=hostile, gpus=1)["spec"]["containers"]
        said = {entry["name"]: entry["value"] for entry in container["env"]}
        assert said["MINE"] == "1"
        assert said.get("NVIDIA_VISIBLE_DEVICES") == (A if where is VISIBLE else None)
        assert not {"CUDA_DISABLE_CONTROL", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"} & set(said)


def test_a_job_cannot_tell_a_plugin_which_devices_it_is_to_have() -> None:
    notes = {"hami.io/vgpu-devices-to-allocate": f"{A},NVIDIA,1,1:;", "nvidia.com/use-gpuuuid": A, "example.com/x": "1"}
    wanted = role().model_copy(update={"template": Template(image="train:1", annotations=notes)})
    spec = job_spec(wanted)
    made = pod_of(job(spec), run(spec), 0, spec, 7, HAMI)["metadata"]["annotations"]
    assert set(notes) & set(made) == {"example.com/x"}


def test_hamis_annotations_come_with_the_bind_and_not_with_the_pod() -> None:
    place = placed((0, 2), 1000)
    assert not [key for key in pod(HAMI, place, gpus=2)["metadata"]["annotations"] if key.startswith("hami.io/")]
    devices = f"{A},NVIDIA,81559,100:{C},NVIDIA,81559,100:;"
    assert at_bind(place, HAMI, NOW) == {
        "tessera.io/devices": "0,2",
        "tessera.io/gpu-milli": "1000",
        "hami.io/vgpu-node": "node-a",
        "hami.io/vgpu-time": "1767323045",
        "hami.io/bind-time": "1767323045",
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-to-allocate": devices,
        "hami.io/vgpu-devices-allocated": devices,
    }


def test_a_pod_without_gpus_is_no_affair_of_hamis() -> None:
    assert at_bind(placed((), 0), HAMI, NOW) == {"tessera.io/devices": "", "tessera.io/gpu-milli": "0"}


def test_hamis_lock_names_the_pod_and_expires() -> None:
    lock = {hami.LOCK_ANNOTATION: hami.lock_for("lab", "run-1-0", NOW)}
    assert lock == {"hami.io/mutex.lock": "2026-01-02T03:04:05Z,lab,run-1-0"}
    assert hami.lock_in(lock, NOW + timedelta(minutes=5)) == hami.Lock(NOW, ("lab", "run-1-0"))
    assert hami.lock_in(lock, NOW + timedelta(minutes=5, seconds=1)) is None
    assert hami.lock_in({hami.LOCK_ANNOTATION: "2026-01-02T04:04:05+01:00,lab,x"}, NOW) == hami.Lock(NOW, ("lab", "x"))
    for unreadable in ("", "yesterday,lab,x", "2026-01-02T03:04:05,lab,x"):
        assert hami.lock_in({hami.LOCK_ANNOTATION: unreadable}, NOW) is None
