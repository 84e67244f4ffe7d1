"""
The rights on Kubernetes that binder and reclamation need, and which of them they lack.

The same as `deploy/kubernetes/base/roles.yaml` gives; a test compares them.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

SYSTEM = "tessera-system"
AT_ONCE = 16
READ = ("get", "list", "watch")
TRAINING_JOBS = ("pytorchjobs", "tfjobs", "mpijobs", "xgboostjobs", "jaxjobs", "paddlejobs", "mxjobs")
POD_GROUPS = ("scheduling.x-k8s.io", "scheduling.volcano.sh", "scheduling.k8s.io")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """`group` is "" for the API's own; `resource` may name a subresource."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f" of {self.group}" if self.group else "")


def _all(group: str, resources: Iterable[str], verbs: Iterable[str]) -> frozenset[Right]:
    return frozenset(Right(group, resource, verb) for resource in resources for verb in verbs)


CLUSTER_WIDE: dict[str, frozenset[Right]] = {
    "reclamation": _all("", ("nodes", "pods"), READ),
    "binder": _all("", ("nodes", "pods"), READ).union(
        _all("", ("services",), ("list", "watch")),
        _all("batch", ("jobs",), READ),
        _all("", ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        _all("storage.k8s.io", ("storageclasses",), ("get",)),
        _all("jobset.x-k8s.io", ("jobsets",), ("get",)),
        *(_all(group, ("podgroups",), ("get",)) for group in POD_GROUPS),
        _all("ray.io", ("rayclusters",), ("get",)),
        _all("leaderworkerset.x-k8s.io", ("leaderworkersets",), ("get",)),
        _all("policy", ("poddisruptionbudgets",), ("list",)),
        _all("scheduling.k8s.io", ("priorityclasses",), ("list",)),
        _all("kubeflow.org", TRAINING_JOBS, ("get",)),
    ),
}
"""By service."""
BIND = Right("", "pods/binding", "create")
OF_TENANT: frozenset[Right] = frozenset({BIND}).union(
    _all("", ("pods",), ("create", "delete", "patch")),
    _all("", ("pods/eviction", "events"), ("create",)),
    _all("", ("pods/status", "persistentvolumeclaims"), ("patch",)),
    _all("", ("services",), ("create", "delete", "get")),
    _all("batch", ("jobs",), ("patch",)),
    _all("jobset.x-k8s.io", ("jobsets",), ("patch",)),
    _all("ray.io", ("rayclusters",), ("patch",)),
    _all("kubeflow.org", TRAINING_JOBS, ("patch",)),
    _all("scheduling.k8s.io", ("podgroups/status",), ("patch",)),
)
"""The binder's, in the namespace of each tenant."""


class Rights(Protocol):
    async def may(self, namespace: str, verb: str, resource: str, group: str = "", user: str = "") -> bool: ...


def account(service: str) -> str:
    """Kubernetes user name of a service's own service account."""
    return f"system:serviceaccount:{SYSTEM}:tessera-{service}"


async def lacking(cluster: Rights, service: str, needed: Iterable[Right], namespace: str = "") -> list[Right]:
    """Those of the needed rights that the service's account has not, in order. Raises ApiError, Transient."""
    lane, user = asyncio.Semaphore(AT_ONCE), account(service)

    async def has(right: Right) -> bool:
        async with lane:
            return await cluster.may(namespace, right.verb, right.resource, right.group, user)

    wanted = sorted(needed)
    answers = await asyncio.gather(*map(has, wanted))
    return [right for right, there in zip(wanted, answers, strict=True) if not there]
