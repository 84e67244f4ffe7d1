"""
The rights on Kubernetes that services need, as the roles of the Helm chart give them.

In the whole cluster there is only reading. Writing needs a RoleBinding in the tenant's namespace; one right of the
whole cluster, `resourceclaims/binding`, is asked for beside the one that such a binding gives; alone it writes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

READ_VERBS = ("get", "list", "watch")
_TRAINING_JOBS = ("pytorchjobs", "tfjobs", "mpijobs", "xgboostjobs", "jaxjobs", "paddlejobs", "mxjobs")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource. `group` is "" for the API's own; `resource` may name a subresource."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f" of {self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of some groups of the API."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def rights(self) -> Iterator[Right]:
        """Every verb on every resource of every group."""
        for group in self.groups:
            for resource in self.resources:
                for verb in self.verbs:
                    yield Right(group, resource, verb)


@dataclass(frozen=True, slots=True)
class ClusterRole:
    """A named set of rules; `means` is the comment above it in the manifest."""

    name: str
    means: str
    rules: tuple[Rule, ...]

    def rights(self) -> frozenset[Right]:
        """Every right that the role gives."""
        return frozenset(right for rule in self.rules for right in rule.rights())


LOG_READER = ClusterRole(
    "tessera-log-reader", "Logs of the pods of a namespace that binds it.", (Rule(("",), ("pods/log",), ("get",)),)
)
NODE_READER = ClusterRole("tessera-node-reader", "Nodes and their devices.", (Rule(("",), ("nodes",), READ_VERBS),))
POD_READER = ClusterRole("tessera-pod-reader", "Pods, ours and those of others.", (Rule(("",), ("pods",), READ_VERBS),))
OWNER_READER = ClusterRole(
    "tessera-owner-reader",
    "Who made the pods that name our scheduler, and how many there will be; and the Services by which pods of a run "
    "meet.",
    (
        Rule(("",), ("services",), ("list", "watch")),
        Rule(("batch",), ("jobs",), READ_VERBS),
        Rule(("",), ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        Rule(("storage.k8s.io",), ("storageclasses",), ("get",)),
        Rule(("jobset.x-k8s.io",), ("jobsets",), READ_VERBS),
        Rule(("scheduling.x-k8s.io", "scheduling.volcano.sh"), ("podgroups",), ("get",)),
        Rule(("scheduling.k8s.io",), ("podgroups", "compositepodgroups"), ("get", "list")),
        Rule(("scheduler.grove.io",), ("podgangs",), ("get",)),
        Rule(("ray.io",), ("rayclusters", "rayjobs"), READ_VERBS),
        Rule(("batch.volcano.sh",), ("jobs",), ("get",)),
        Rule(("leaderworkerset.x-k8s.io",), ("leaderworkersets",), ("get",)),
        Rule(("apps",), ("replicasets", "statefulsets"), ("get",)),
        Rule(("policy",), ("poddisruptionbudgets",), ("list",)),
        Rule(("scheduling.k8s.io",), ("priorityclasses",), ("list",)),
        Rule(("kubeflow.org",), _TRAINING_JOBS, READ_VERBS),
        Rule(("trainer.kubeflow.org",), ("trainjobs",), READ_VERBS),
    ),
)
CLAIM_READER = ClusterRole(
    "tessera-claim-reader",
    "Claims on devices that drivers publish (DRA): a pod is gone only once its claims are free.",
    (Rule(("resource.k8s.io",), ("resourceclaims",), ("list",)),),
)
DEVICE_READER = ClusterRole(
    "tessera-device-reader",
    "Devices that drivers publish (DRA), their classes, and claims on them with their templates; NUMA zones of nodes.",
    (
        Rule(("resource.k8s.io",), ("resourceclaims",), READ_VERBS),
        Rule(("resource.k8s.io",), ("deviceclasses", "devicetaintrules", "resourceslices"), ("list", "watch")),
        Rule(("resource.k8s.io",), ("resourceclaimtemplates",), ("get",)),
        Rule(("topology.node.k8s.io",), ("noderesourcetopologies",), ("list", "watch")),
    ),
)
CLAIM_BINDER = ClusterRole(
    "tessera-claim-binder",
    "Allocation and users of claims, which Kubernetes asks for the whole cluster. Nothing can be written with this "
    "alone: the status itself is writable only where a namespace binds the role of the binder.",
    (Rule(("resource.k8s.io",), ("resourceclaims/binding",), ("patch",)),),
)
BINDER = ClusterRole(
    "tessera-binder",
    "All that is ever written to Kubernetes, only by the binder, and only where a namespace binds it. Of the owners of "
    "pods only spec.suspend is written, a mark that says who suspended them, and a condition in their status. Events "
    "are read, too, since only there do kubelets say what keeps a pod from its network and volumes.",
    (
        Rule(("",), ("pods",), ("create", "delete", "patch")),
        Rule(("",), ("pods/binding", "pods/eviction"), ("create",)),
        Rule(("",), ("pods/status", "pods/resize"), ("patch",)),
        Rule(("",), ("events",), ("create", "list")),
        Rule(("",), ("services",), ("create", "delete", "get")),
        Rule(("",), ("persistentvolumeclaims",), ("patch",)),
        Rule(("resource.k8s.io",), ("resourceclaims",), ("create", "patch")),
        Rule(("resource.k8s.io",), ("resourceclaims/status",), ("patch",)),
        Rule(("batch",), ("jobs",), ("patch",)),
        Rule(("jobset.x-k8s.io",), ("jobsets",), ("patch",)),
        Rule(("ray.io",), ("rayclusters", "rayjobs"), ("patch",)),
        Rule(("kubeflow.org",), _TRAINING_JOBS, ("patch",)),
        Rule(("trainer.kubeflow.org",), ("trainjobs",), ("patch",)),
        Rule(("scheduling.k8s.io",), ("podgroups/status", "compositepodgroups/status"), ("patch",)),
        Rule(("batch",), ("jobs/status",), ("patch",)),
        Rule(("jobset.x-k8s.io",), ("jobsets/status",), ("patch",)),
        Rule(("ray.io",), ("rayclusters/status",), ("patch",)),
    ),
)
STEPS_KEYS = ClusterRole(
    "tessera-steps-keys",
    "Keys of runs with `launcher: steps`: made, never read. Each goes with the Service of its run, which owns it.",
    (Rule(("",), ("secrets",), ("create",)),),
)
SESSION_INGRESS = ClusterRole(
    "tessera-session-ingress",
    "Ingresses of sessions: made, never read or changed. Each goes with the Service of its run, which owns it.",
    (Rule(("networking.k8s.io",), ("ingresses",), ("create",)),),
)
