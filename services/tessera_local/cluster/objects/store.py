"""
Stored objects and their life: creation, change, deletion with grace and finalizers, and the kubelets' part.

An object under deletion goes when its kubelet (if it has one) has ended it and its last finalizer is off, whichever
comes last; as in the API, "ended" is a grace period of 0.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.selectors import parse_selector
from tessera_local.cluster.api.values import rfc3339
from tessera_local.cluster.machines import pod_statuses, taints
from tessera_local.cluster.machines.behaviour import deadline_ms_of, grace_ms_of
from tessera_local.cluster.machines.kubelet import Kubelets
from tessera_local.cluster.machines.timers import Timers
from tessera_local.cluster.objects.claims import release_claims
from tessera_local.cluster.objects.saved_pods import SavedPods
from tessera_local.cluster.objects.shelf import Counter, Shelf, Version
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ENDED_PHASES, EVICT_AT_ANNOTATION, RUN_LABEL

KINDS = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "events": ("v1", "Event"),
    "services": ("v1", "Service"),
    "secrets": ("v1", "Secret"),
    "ingresses": ("networking.k8s.io/v1", "Ingress"),
    "jobs": ("batch/v1", "Job"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "storageclasses": ("storage.k8s.io/v1", "StorageClass"),
    "priorityclasses": ("scheduling.k8s.io/v1", "PriorityClass"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "deviceclasses": ("resource.k8s.io/v1", "DeviceClass"),
    "noderesourcetopologies": ("topology.node.k8s.io/v1alpha2", "NodeResourceTopology"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "podgroups": ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    "podgroups.scheduling.k8s.io": ("scheduling.k8s.io/v1alpha2", "PodGroup"),
    "compositepodgroups": ("scheduling.k8s.io/v1alpha3", "CompositePodGroup"),
    "podgroups.scheduling.volcano.sh": ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    "podgangs": ("scheduler.grove.io/v1alpha1", "PodGang"),
    "rayclusters": ("ray.io/v1", "RayCluster"),
    "rayjobs": ("ray.io/v1", "RayJob"),
    "replicasets": ("apps/v1", "ReplicaSet"),
    "statefulsets": ("apps/v1", "StatefulSet"),
    "leaderworkersets": ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "mpijobs": ("kubeflow.org/v2beta1", "MPIJob"),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"),
}
"""By resource, with its group where several have one of that name: what can be held, and as which apiVersion."""
WITHOUT_NAMESPACE = (
    *("nodes", "persistentvolumes", "priorityclasses", "storageclasses"),
    *("resourceslices", "deviceclasses", "noderesourcetopologies"),
)
_SET_BY_SERVER = ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion")


def resource_in(api_version: str, plural: str) -> str:
    """The name here of a resource as paths name it; "" where it is not served in this version."""
    names = (f"{plural}.{api_version.partition('/')[0]}", plural)
    return next((name for name in names if KINDS.get(name, ("",))[0] == api_version), "")


class WallClock(Protocol):
    """The clock that the cluster needs."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; virtual under the simulator."""


EVERYTHING = parse_selector("")
EVENTS_MAX = 10_000  # a real server forgets them after an hour


@dataclass(frozen=True, slots=True)
class Options:
    """
    `start_ms`: from bind to start. `history`: changes that a watch may be behind, per kind.

    `indexed_labels` make lists by that label cheap. `odd_every`: of so many versions of objects one is said in odd
    words (`in_odd_words`); 0: none is.
    """

    start_ms: int = 5
    history: int = 10_000
    indexed_labels: tuple[str, ...] = (RUN_LABEL,)
    odd_every: int = 0


class Store:
    """Pods and nodes with their kubelets. Callers have checked what they ask for."""

    def __init__(self, clock: WallClock, seed: int, options: Options) -> None:
        self.counter = Counter()
        self.timers = Timers()
        self.shelves = {
            resource: Shelf(kind, resource, self.counter, options.history, options.indexed_labels, options.odd_every)
            for resource, (_, kind) in KINDS.items()
        }
        self.pods, self.nodes = self.shelves["pods"], self.shelves["nodes"]
        self.kubelets = Kubelets(self.pods, self.timers, options.start_ms, self._end_pod, self._warn)
        self._clock, self._seed, self._uids = clock, seed, 0

    def saved(self) -> SavedPods:
        """All that outlives the process, as of now."""
        return SavedPods(
            version=self.counter.last,
            uids=self._uids,
            objects={
                resource: [one.object for one in shelf.select(EVERYTHING)]
                for resource, shelf in self.shelves.items()
                if shelf is not self.nodes and len(shelf)
            },
            runs=self.kubelets.runs,
        )

    def put_back(self, saved: SavedPods) -> None:
        """Begin with what an earlier process had; nodes are created afterwards."""
        self.counter.last, self._uids = saved.version, saved.uids
        for resource, shelf in self.shelves.items():
            shelf.log.begin_at(saved.version)
            for obj in saved.objects.get(resource, ()):
                shelf.put_back(obj)
        for uid, run in saved.runs.items():
            self.kubelets.resume(uid, run, self.now_ms())

    def shelf(self, resource: str) -> Shelf:
        """Shelf of a resource such as `pods`. Raises ApiError 404 for a resource that is not kept."""
        shelf = self.shelves.get(resource)
        if shelf is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return shelf

    def create(self, shelf: Shelf, namespace: str, obj: Json) -> Version:
        """Complete and store an object, and tell its kubelet; the 10,001st event takes the oldest one's place."""
        if shelf.resource == "events" and len(shelf) >= EVENTS_MAX:
            shelf.remove(shelf.oldest)
        if shelf is self.nodes and shelf.get("", obj["metadata"]["name"]) is None:  # first: it registers with its boot
            self.kubelets.set_reachable(obj["metadata"]["name"], True, self.now_ms())
        created = shelf.add(self._filled(shelf, namespace, obj))
        if shelf is self.nodes:
            self.kubelets.node_changed(created)
            self._evict_by_taints(created)
        elif shelf is self.pods and created.node:  # made bound already, as a DaemonSet's or a foreign scheduler's pod
            self._bound(created)
        return created

    def bind(self, pod: Version, node: str, annotations: Json) -> None:
        """Write node, annotations and PodScheduled as one version, then hand the pod to its kubelet."""
        meta = dict(pod.meta)
        if annotations:
            meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
        spec = {**pod.object["spec"], "nodeName": node}
        status = self.with_condition(pod, "PodScheduled", "True")
        self._bound(self.pods.replace(pod, {**pod.object, "metadata": meta, "spec": spec, "status": status}))

    def _bound(self, pod: Version) -> None:
        self.kubelets.bound(pod, self.now_ms())
        if (node := self.nodes.get("", pod.node)) is not None:
            self._time_on(node, pod)

    # -- the taint manager

    def _evict_by_taints(self, node: Version) -> None:
        for pod in self.pods.on_node(node.meta["name"]):
            self._time_on(node, pod)

    def _time_on(self, node: Version, pod: Version) -> None:
        """Set the time at which the node's taints evict the pod, or take it off."""
        stays_ms = taints.stays_ms(pod.object, node.object["spec"].get("taints", ()))
        if stays_ms is None:
            self.timers.cancel(taints.TIMER + pod.uid)
        elif taints.is_to_go(pod.object):
            self.timers.set(taints.TIMER + pod.uid, self.now_ms() + stays_ms)

    def evict_by_taint(self, uid: str) -> None:
        """Mark and delete a pod whose time under a NoExecute taint is over, if it is still to go."""
        pod = self.pods.with_uid(uid)
        if pod is not None and taints.is_to_go(pod.object):
            status = taints.marked(pod.object["status"], self.now_ms())
            marked = self.pods.replace(pod, {**pod.object, "metadata": dict(pod.meta), "status": status})
            self.begin_deletion(self.pods, marked, None)

    def replace(self, shelf: Shelf, old: Version, obj: Json) -> Version:
        """Store a change; an object that only waited for this change to go, goes."""
        meta = obj["metadata"]
        if old.deleting and not meta["deletionGracePeriodSeconds"] and not meta.get("finalizers"):
            if old.meta.get("finalizers"):  # the patch that takes the last one off is the removal itself
                return self.remove(shelf, old)
            return self.remove(shelf, shelf.replace(old, obj))
        new = shelf.replace(old, obj)
        if shelf is self.nodes:
            self.kubelets.node_changed(new)
            if old.object["spec"].get("taints", ()) != new.object["spec"].get("taints", ()):
                self._evict_by_taints(new)
        elif shelf is self.pods and (
            EVICT_AT_ANNOTATION in (meta.get("annotations") or {})
            or deadline_ms_of(old.object) != deadline_ms_of(obj)
            or old.object["spec"].get("containers") is not obj["spec"].get("containers")
        ):
            # the one change that programs look out for, and those that kubelets do
            self.kubelets.touched(new.uid, self.now_ms())
        return new

    def begin_deletion(self, shelf: Shelf, found: Version, grace_seconds: int | None) -> Version:
        """Mark it with its grace: the pod's own or the one asked for; 0 for what no kubelet runs."""
        grace = 0
        if shelf is self.pods and found.node and found.phase not in ENDED_PHASES:
            own = grace_ms_of(found.object) // 1000
            grace = own if grace_seconds is None else max(int(grace_seconds), 0)
        if found.deleting:
            if grace >= found.meta["deletionGracePeriodSeconds"]:
                return found
            stamps: Json = {"deletionGracePeriodSeconds": grace}
        else:
            due = rfc3339(self.now_ms() + grace * 1000)
            stamps = {"deletionTimestamp": due, "deletionGracePeriodSeconds": grace}
        if grace == 0 and not found.meta.get("finalizers"):
            return self.remove(shelf, found)
        marked = shelf.replace(found, {**found.object, "metadata": {**found.meta, **stamps}})
        self.kubelets.touched(marked.uid, self.now_ms())
        return marked

    def remove(self, shelf: Shelf, found: Version) -> Version:
        """Take an object off at once and tell the kubelets; returns the object as last stored."""
        shelf.remove(found)
        if shelf is self.nodes:
            self.kubelets.node_gone(found.meta["name"])
        elif shelf.resource == "services":
            self._collect(found.uid)
        else:
            self.kubelets.touched(found.uid, self.now_ms())
        if shelf is self.pods:
            self._release_claims(found.uid)
        return found

    def _release_claims(self, pod_uid: str) -> None:
        release_claims(self.shelves["resourceclaims"], pod_uid, self.replace, self.begin_deletion)

    def _collect(self, owner: str) -> None:
        """The garbage collector, as far as anything relies on it: of what goes with a Service that owns it."""
        for shelf in (self.shelves["secrets"], self.shelves["ingresses"]):
            for one in shelf.select(EVERYTHING):
                if any(ref["uid"] == owner for ref in one.meta.get("ownerReferences") or ()):
                    self.remove(shelf, one)

    def with_condition(self, found: Version, name: str, status: str, reason: str = "", message: str = "") -> Json:
        """The object's status with one condition set."""
        return pod_statuses.with_condition(found.object["status"], name, status, self.now_ms(), reason, message)

    def boot_id(self, node: str) -> str:
        """Identity of the present life of the machine of that name."""
        life = f"{self._seed}/{node}/{self.kubelets.boots_of(node)}"
        digest = hashlib.sha256(life.encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"

    def now_ms(self) -> int:
        """Clock of the whole cluster, in milliseconds since the Unix epoch."""
        return self._clock.now_ms()

    def _filled(self, shelf: Shelf, namespace: str, obj: Json) -> Json:
        self._uids += 1
        meta: Json = {
            **obj["metadata"],
            "uid": f"{self._seed & 0xFFFFFFFF:08x}-0000-4000-8000-{self._uids:012x}",
            "creationTimestamp": rfc3339(self.now_ms()),
        }
        if namespace:
            meta["namespace"] = namespace
        for name in _SET_BY_SERVER:
            meta.pop(name, None)
        if shelf not in (self.pods, self.nodes):
            return {**obj, "kind": shelf.kind, "apiVersion": KINDS[shelf.resource][0], "metadata": meta}
        filled = {"kind": shelf.kind, "apiVersion": "v1", "metadata": meta, "spec": obj.get("spec") or {}}
        return {**filled, "status": {"phase": "Pending"} if shelf is self.pods else self._node_status(obj)}

    def _node_status(self, node: Json) -> Json:
        status: Json = {"capacity": {}, **(node.get("status") or {})}
        status.setdefault("allocatable", status["capacity"])
        status["nodeInfo"] = {**(status.get("nodeInfo") or {}), "bootID": self.boot_id(node["metadata"]["name"])}
        return pod_statuses.with_condition(status, "Ready", "True", self.now_ms(), "KubeletReady")

    def _end_pod(self, pod: Version, status: Json) -> None:
        """A kubelet's last word on a pod: its status, and its leave for the object to go if it was deleted."""
        meta = dict(pod.meta)
        if pod.deleting:
            meta["deletionGracePeriodSeconds"] = 0
        self.replace(self.pods, pod, {**pod.object, "metadata": meta, "status": {**pod.object["status"], **status}})
        self._release_claims(pod.uid)

    def _warn(self, pod: Version, reason: str, message: str) -> None:
        """A kubelet's event of a pod; what it said before it says again by a count and a time."""
        events, now, namespace = self.shelves["events"], rfc3339(self.now_ms()), pod.meta["namespace"]
        name = f"{pod.meta['name']}.{hashlib.sha256(f'{pod.uid}/{reason}/{message}'.encode()).hexdigest()[:16]}"
        if (before := events.get(namespace, name)) is not None:
            more = {"count": before.object["count"] + 1, "lastTimestamp": now}
            self.replace(events, before, {**before.object, "metadata": dict(before.meta), **more})
            return
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod.meta["name"], "uid": pod.uid}
        event = pod_statuses.kubelet_event(about, pod.node, reason, message, now)
        self.create(events, namespace, {"metadata": {"name": name}, **event})
