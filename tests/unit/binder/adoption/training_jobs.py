"""Owners that make their pods late."""

from typing import Any

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod

LABEL = {"training.kubeflow.org/job-name": "train"}


def make_training_job(world: AdoptionWorld, pods: int = 2) -> dict[str, Any]:
    """Of an operator that is not there: its pods are made by the test."""
    replicas = {"Worker": {"replicas": pods, "restartPolicy": "OnFailure"}}
    made = world.core.create(
        "pytorchjobs", NS, {"metadata": {"name": "train"}, "spec": {"pytorchReplicaSpecs": replicas}}
    )
    uid = made.uid
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": uid, "controller": True}


def make_pods(world: AdoptionWorld, owner: dict[str, Any], pods: int = 2, seconds: float = 600) -> None:
    for number in range(pods):
        pod = user_pod(f"train-{number}", seconds=seconds, labels=LABEL)
        pod["metadata"]["ownerReferences"] = [owner]
        world.core.create("pods", NS, pod)
