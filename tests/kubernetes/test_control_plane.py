"""The harness itself: nodes that are ready, pods that run as their annotations say, identities that may do nothing."""

from typing import Any

import pytest

from tessera.kernel.ports import ApiError
from tests.kubernetes.control_plane import ControlPlane, wait_until

Json = dict[str, Any]
SIMULATE = "tessera.io/simulate-"


def bound_pod(plane: ControlPlane, name: str, node: str, **behaviour: str) -> Json:
    notes = {SIMULATE + key.replace("_", "-"): value for key, value in behaviour.items()}
    made = plane.api().create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": notes, "finalizers": ["tessera.io/held"]},
            "spec": {
                "schedulerName": "tessera",
                "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "main", "image": "img"}],
            },
        }
    )
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    plane.api().call("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)
    return made


def status(plane: ControlPlane, name: str) -> Json:
    found: Json = plane.api().get(f"/api/v1/namespaces/default/pods/{name}")["status"]
    return found


def exit_code(found: Json) -> int:
    code: int = found["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    return code


def let_go(plane: ControlPlane, name: str) -> None:
    plane.api().patch(f"/api/v1/namespaces/default/pods/{name}", {"metadata": {"finalizers": None}})


def test_nodes_are_ready_and_have_what_was_asked_for(plane: ControlPlane):
    (name,) = plane.add_nodes(1, "harness-a", gpus=2, labels={"node-type": "my-precious"}, cpu="2")
    node = plane.api().get(f"/api/v1/nodes/{name}")
    assert node["status"]["allocatable"] == {"cpu": "2", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": "2"}
    assert node["metadata"]["labels"]["node-type"] == "my-precious"
    assert "taints" not in node["spec"]


def test_a_pod_runs_as_long_and_ends_as_its_annotations_say(plane: ControlPlane):
    (node,) = plane.add_nodes(1, "harness-b")
    bound_pod(plane, "fails", node, seconds="0.2", exit_code="3")
    bound_pod(plane, "goes-on", node, seconds="3600")
    wait_until(lambda: status(plane, "fails")["phase"] == "Failed", "the pod has failed")
    assert exit_code(status(plane, "fails")) == 3
    wait_until(lambda: status(plane, "goes-on")["phase"] == "Running", "the pod runs")
    for name in ("fails", "goes-on"):
        let_go(plane, name)


def test_a_change_of_a_running_pod_does_not_prolong_it(plane: ControlPlane):
    (node,) = plane.add_nodes(1, "harness-c")
    bound_pod(plane, "noted", node, seconds="5")
    wait_until(lambda: status(plane, "noted")["phase"] == "Running", "the pod runs")
    changes = 0
    while status(plane, "noted")["phase"] == "Running":  # each change makes KWOK look at the pod anew
        changes += 1
        plane.api().patch("/api/v1/namespaces/default/pods/noted", {"metadata": {"annotations": {"n": str(changes)}}})
    assert changes > 2
    assert status(plane, "noted")["phase"] == "Succeeded"
    let_go(plane, "noted")


def test_a_deleted_pod_ends_with_sigterm_and_one_that_ignores_it_is_killed(plane: ControlPlane):
    (node,) = plane.add_nodes(1, "harness-d")
    bound_pod(plane, "polite", node, seconds="3600")
    bound_pod(plane, "stubborn", node, seconds="3600", term_ms="60000")
    for name, code, grace in (("polite", 143, 5), ("stubborn", 137, 1)):
        wait_until(lambda name=name: status(plane, name)["phase"] == "Running", f"{name} runs")  # type: ignore[misc]
        plane.api().delete(f"/api/v1/namespaces/default/pods/{name}", gracePeriodSeconds=grace)
        wait_until(lambda name=name: status(plane, name)["phase"] == "Failed", f"{name} ended")  # type: ignore[misc]
        assert exit_code(status(plane, name)) == code
        let_go(plane, name)
        with pytest.raises(ApiError, match="404"):
            status(plane, name)


def test_an_identity_may_do_nothing_until_it_is_granted(plane: ControlPlane):
    with pytest.raises(ApiError, match="403 Forbidden"):
        plane.api("stranger").items("/api/v1/nodes")
    plane.grant("stranger", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}])
    wait_until(lambda: may(plane, "/api/v1/nodes"), "the stranger may list nodes")
    with pytest.raises(ApiError, match="403 Forbidden"):
        plane.api("stranger").items("/api/v1/pods")


def may(plane: ControlPlane, path: str) -> bool:
    try:
        plane.api("stranger").items(path)
    except ApiError:
        return False
    return True


def test_a_service_account_is_let_in_by_a_token_of_its_own(plane: ControlPlane):
    token = plane.service_account_token("default", "default")
    with pytest.raises(ApiError, match="system:serviceaccount:default:default"):
        plane.api(token=token).items("/api/v1/pods")
