"""
Before the services of a shard are taken away for good: no pod may be left with a finalizer that nobody removes.

First the binder is stopped, so that no further pod is made; then the finalizer is removed from every pod of the shard.
What runs goes on.
"""

from collections.abc import Sequence
from typing import Protocol

from tessera.client.outcomes import Exit, Failure
from tessera.kernel.ports import ApiError, Clock
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import FINALIZER, pods_of_shard

POLL_SECONDS = 0.5
PASSES_MAX = 5


class PodReleaser(Protocol):
    """The part of the Kubernetes API that is needed here."""

    async def list(self, kind: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]:
        """Objects of a kind in all namespaces, and as of which version."""

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """One object; ApiError 404 when it is not there."""

    async def patch_object(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """A merge patch."""

    async def remove_finalizer(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        """ApiError 409 when the pod changed meanwhile, 404 when it is gone."""


async def stop_deployment(cluster: PodReleaser, clock: Clock, namespace: str, name: str, seconds: float) -> None:
    """
    Scale a Deployment to nothing and wait until its pods are gone; one that is not there is stopped.

    Raises Failure with GAVE_UP when a pod outlives the time given.
    """
    try:
        found = await cluster.get_object("apps/v1", "Deployment", namespace, name)
        await cluster.patch_object("apps/v1", "Deployment", namespace, name, {"spec": {"replicas": 0}})
    except ApiError as error:
        if error.status != 404:
            raise
        return
    labels = found["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    deadline = clock.monotonic() + seconds
    while any(pod["metadata"]["namespace"] == namespace for pod in (await cluster.list("pods", selector))[0]):
        if clock.monotonic() > deadline:
            raise Failure(
                Exit.GAVE_UP, f"deployment {name}: its pods still exist after {seconds:g} s; see `kubectl describe pod`"
            )
        await clock.sleep(POLL_SECONDS)


async def release_pods(cluster: PodReleaser, shards: Sequence[str]) -> int:
    """
    Take our finalizer off every pod of these shards; returns how many had it.

    Raises Failure when pods keep changing under our hands, so that some still have it.
    """
    released = 0
    for shard in shards:
        for _ in range(PASSES_MAX):
            held = await _held(cluster, shard)
            if not held:
                break
            for pod in held:
                released += await _release(cluster, pod)
        else:
            raise Failure(Exit.CONFLICT, f"shard {shard}: pods still have the finalizer {FINALIZER}; try again")
    return released


async def _held(cluster: PodReleaser, shard: str) -> list[Json]:
    pods, _ = await cluster.list("pods", pods_of_shard(shard))
    return [pod["metadata"] for pod in pods if FINALIZER in (pod["metadata"].get("finalizers") or ())]


async def _release(cluster: PodReleaser, meta: Json) -> bool:
    """Whether it is off now; one that changed meanwhile (409) is tried again in the next pass."""
    try:
        await cluster.remove_finalizer(meta["namespace"], meta["name"], meta["uid"], FINALIZER)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return False
    return True
