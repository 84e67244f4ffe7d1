"""What nodes show of their health by themselves: conditions, NVSentinel's label, device taints, missing devices."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.reclamation.health.conditions import (
    CONDITIONS,
    conditions_of_node,
    missing_devices,
    quarantine_of_node,
    taints_of_devices,
)
from tessera_schemas.cluster.health import HealthCause
from tessera_schemas.reasons import Code, Reason
from tests.unit.engine.engine_builders import node as gpu_node


def node(*conditions: tuple[str, str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    shown = [{"type": kind, "status": status, "reason": "Why", "message": "how"} for kind, status in conditions]
    return {"metadata": {"name": "n", "labels": labels or {}}, "status": {"conditions": shown}}


def causes(*conditions: tuple[str, str], **more: HealthCause) -> list[HealthCause]:
    return [one.ailment.cause for one in conditions_of_node(node(*conditions), more)]


def test_conditions_of_node_problem_detector_are_bad_news_while_true() -> None:
    assert causes(("KernelDeadlock", "True"), ("ReadonlyFilesystem", "False")) == [HealthCause.NODE_CONDITION]
    (seen,) = conditions_of_node(node(("KernelDeadlock", "True")), {})
    assert seen.ailment.evidence == "KernelDeadlock: Why: how"
    assert not seen.at_once


def test_conditions_of_eks_are_bad_news_while_false() -> None:
    shown = ("AcceleratedHardwareReady", "NetworkingReady", "StorageReady")
    assert causes(*((name, "False") for name in shown)) == [
        HealthCause.GPU_FAULT,
        HealthCause.NETWORK,
        HealthCause.NODE_CONDITION,
    ]
    assert causes(*((name, "True") for name in shown)) == []


@pytest.mark.parametrize("status", ["Unknown", "", "true", None])
def test_a_condition_that_nobody_knows_the_state_of_says_nothing(status: Any) -> None:
    assert causes(("KernelDeadlock", status), ("KernelReady", status)) == []


def test_the_kubelets_own_conditions_and_unknown_ones_say_nothing_unless_they_are_named() -> None:
    shown = (("Ready", "False"), ("MemoryPressure", "True"), ("RackOnFire", "True"), ("RackPower", "False"))
    assert causes(*shown) == []
    named = {"RackOnFire": HealthCause.NODE_CONDITION, "RackPower=False": HealthCause.NETWORK}
    assert [one.ailment.cause for one in conditions_of_node(node(*shown), named)] == list(named.values())


def test_a_long_message_is_cut_to_what_a_record_takes() -> None:
    shown = node(("KernelDeadlock", "True"))
    shown["status"]["conditions"][0]["message"] = "x" * 10_000
    assert len(conditions_of_node(shown, {})[0].ailment.evidence) == 256


@pytest.mark.parametrize("odd", [{}, {"status": None}, {"status": {"conditions": None}}])
def test_a_node_without_conditions_says_nothing(odd: dict[str, Any]) -> None:
    assert conditions_of_node({"metadata": {"name": "n"}} | odd, {}) == []


STATES = [
    ("quarantined", HealthCause.QUARANTINED),
    ("draining", HealthCause.DRAIN_ASKED),
    *((state, HealthCause.QUARANTINED) for state in ("drain-succeeded", "drain-failed", "remediating")),
    *((state, HealthCause.QUARANTINED) for state in ("remediation-succeeded", "remediation-failed", "of a later one")),
]


@pytest.mark.parametrize(("state", "cause"), STATES)
def test_nvsentinel_keeps_a_node_from_use_and_asks_for_it_while_it_drains(state: str, cause: HealthCause) -> None:
    labels = {"dgxc.nvidia.com/nvsentinel-state": state, "k8s.nvidia.com/cordon-reason": "GpuXidError"}
    (seen,) = quarantine_of_node(node(labels=labels))
    assert (seen.ailment.cause, seen.at_once) == (cause, True)
    assert seen.ailment.evidence == f"NVSentinel: {state}: GpuXidError"


def test_a_node_without_its_label_is_none_of_nvsentinels() -> None:
    assert quarantine_of_node(node(labels={"k8s.nvidia.com/cordon-reason": "old"})) == []
    assert quarantine_of_node({"metadata": {"name": "n", "labels": None}}) == []


def test_each_condition_is_known_by_one_polarity() -> None:
    assert all(not (name.endswith("=False") and name.removesuffix("=False") in CONDITIONS) for name in CONDITIONS)


def test_a_device_taint_is_about_its_device() -> None:
    tainted = (("gpu.nvidia.com/node-a/gpu-0", "gpu.nvidia.com/xid", "79", "NoExecute"),)
    (seen,) = taints_of_devices(replace(gpu_node(), tainted=tainted))
    assert (seen.ailment.cause, seen.ailment.device) == (HealthCause.DEVICE_TAINTED, "gpu.nvidia.com/node-a/gpu-0")
    assert seen.ailment.evidence == "gpu.nvidia.com/xid=79:NoExecute"


def test_a_node_that_offers_fewer_gpus_than_are_installed_is_short_unless_something_else_explains_it() -> None:
    short = gpu_node(gpus=7, capacity={"nvidia.com/gpu": 8})
    (seen,) = missing_devices(short)
    assert (seen.ailment.cause, seen.ailment.evidence) == (HealthCause.DEVICES_MISSING, "7 of 8 GPUs are offered")
    assert missing_devices(gpu_node(gpus=8, capacity={"nvidia.com/gpu": 8})) == []
    conflict = Reason(code=Code.DEVICE_CONFLICT)
    for explained in ({"gone": True}, {"ready": False}, {"is_cut": True}, {"trouble": conflict}):
        assert missing_devices(replace(short, **explained)) == []
