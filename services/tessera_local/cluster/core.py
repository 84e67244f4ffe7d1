"""
The API server of the simulated cluster, without I/O: calls in, versions out, time by `advance`.

Every call is atomic and raises ApiError as the API would answer, or AnswerLost when that was ordered. Objects handed
out are shared and read-only. Nothing happens by itself: whoever owns the cluster calls `advance` when `next_due_ms`
comes, in virtual or in real time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tessera.kernel.kubernetes.api_paths import resource_of
from tessera_local.cluster.api import answers, rules
from tessera_local.cluster.api.paging import Pages
from tessera_local.cluster.api.patching import JsonPatch, merged, patched, strategic
from tessera_local.cluster.api.selectors import parse_selector
from tessera_local.cluster.api.watching import WatchReader
from tessera_local.cluster.machines import pod_statuses, taints
from tessera_local.cluster.machines.accidents import Machines
from tessera_local.cluster.machines.capacity import NodeUse
from tessera_local.cluster.machines.logs import Log, log_of
from tessera_local.cluster.objects import budgets
from tessera_local.cluster.objects.faults import Faults
from tessera_local.cluster.objects.saved_pods import SavedPods
from tessera_local.cluster.objects.shelf import Version
from tessera_local.cluster.objects.store import Options, Store, WallClock, resource_in
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import OUT_OF_SERVICE_TAINT

EVICTED_BY_API = "EvictionByEvictionAPI"


class SimCluster(Machines):
    """Pods of every namespace, nodes, their kubelets and the faults ordered for them."""

    def __init__(self, clock: WallClock, seed: int = 1, options: Options | None = None) -> None:
        super().__init__(Store(clock, seed, options or Options()))
        self.faults = Faults()
        self.pages = Pages()
        self._forced: set[str] = set()

    # -- the API ------------------------------------------------------------------------------------------------

    def list(self, resource: str, selector: str = "", fields: str = "") -> tuple[list[Version], str]:
        """The objects and the resourceVersion from which a watch goes on."""
        self.faults.before("list")
        found = self._store.shelf(resource).select(parse_selector(selector, fields))
        self.faults.after("list")
        return found, self.resource_version

    def open_watch(self, resource: str, resource_version: str, selector: str = "", fields: str = "") -> WatchReader:
        """Follow changes after a version. Raises ApiError 410 for one too old, 504 for one not reached."""
        self.faults.before("watch")
        return self._store.shelf(resource).watch(resource_version, parse_selector(selector, fields))

    def resource(self, api_version: str, kind: str) -> str:
        """Name under which objects of this kind are kept. Answers 404 where the cluster has no such kind."""
        found = resource_in(api_version, resource_of(kind))
        if not found:
            raise answers.not_found(resource_of(kind), "")
        return found

    def get(self, resource: str, namespace: str, name: str) -> Version:
        """Object as stored, shared and not to be changed. Raises ApiError 404."""
        self.faults.before("get")
        return self._store.shelf(resource).require(namespace, name)

    def read_log(self, namespace: str, name: str, is_open: bool = False) -> Log:
        """
        Log of a pod up to now; one that `is_open` already is read to its end though the pod be gone meanwhile, as a
        kubelet streams it. Raises ApiError 404, or 400 before its container has started.
        """
        self.faults.before("log")
        pods = self._store.pods
        pod = pods.as_it_was_last(namespace, name) if is_open else pods.require(namespace, name)
        log = log_of(pod.object, self._store.now_ms())
        return log if pods.get(namespace, name) is pod else replace(log, is_whole=True)

    def create(self, resource: str, namespace: str, obj: Any) -> Version:
        """Store a new object, taking it over. 409 AlreadyExists when the name is taken."""
        self.faults.before("create")
        shelf = self._store.shelf(resource)
        new = rules.check_new(resource, namespace, obj)
        self.faults.check_create(resource, namespace, new["metadata"]["name"])
        if shelf.get(namespace, new["metadata"]["name"]) is not None:
            raise answers.already_exists(resource, new["metadata"]["name"])
        created = self._store.create(shelf, namespace, new)
        self.faults.after("create")
        return created

    def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Bind a pod by a Binding object; its annotations land on the pod in the same write."""
        self.faults.before("bind")
        target = (binding.get("target") or {}).get("name")
        if not target:
            raise answers.bad_request("target.name is required")
        pod = self._store.pods.require(namespace, name)
        asked = binding.get("metadata") or {}
        rules.check_preconditions("pods/binding", pod, asked.get("uid"), asked.get("resourceVersion"))
        rules.check_bindable(pod)
        self._store.bind(pod, target, asked.get("annotations") or {})
        self.faults.after("bind")

    def delete(self, resource: str, namespace: str, name: str, options: Json | None = None) -> Version:
        """Delete by DeleteOptions: preconditions, grace period, finalizers. Returns the object as it is then."""
        self.faults.before("delete")
        options = options or {}
        shelf = self._store.shelf(resource)
        found = shelf.require(namespace, name)
        conditions = options.get("preconditions") or {}
        rules.check_preconditions(resource, found, conditions.get("uid"), conditions.get("resourceVersion"))
        deleted = self._store.begin_deletion(shelf, found, options.get("gracePeriodSeconds"))
        self.faults.after("delete")
        return deleted

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        patch: Json | JsonPatch,
        subresource: str = "",
        *,
        by_keys: bool = False,
    ) -> Version:
        """
        Apply a merge patch (an object; `by_keys`: a strategic one) or a JSON patch (a list).

        A patch that changes nothing writes nothing.
        """
        self.faults.before("patch")
        shelf = self._store.shelf(resource)
        found = shelf.require(namespace, name)
        merge = strategic if by_keys else merged
        wanted = patched(found.object, patch) if isinstance(patch, list) else merge(found.object, patch)
        result = rules.result_of_patch(resource, subresource, found, wanted)
        if result != found.object:
            found = self._store.replace(shelf, found, result)
        self.faults.after("patch")
        return found

    def evict(self, namespace: str, name: str, eviction: Json | None = None) -> None:
        """Delete politely: marks the pod as a disruption target, then deletes it with its own grace."""
        self.faults.before("evict")
        options = (eviction or {}).get("deleteOptions") or {}
        pod = self._store.pods.require(namespace, name)
        conditions = options.get("preconditions") or {}
        rules.check_preconditions("pods", pod, conditions.get("uid"), conditions.get("resourceVersion"))
        shelf = self._store.shelf("poddisruptionbudgets")
        protecting = [] if pod.deleting else budgets.protecting(pod, shelf.select(parse_selector("")))
        if options.get("dryRun"):
            self.faults.after("evict")
            return
        for budget in protecting:
            shelf.replace(budget, budgets.used(budget))
        if not pod.deleting:
            why = (EVICTED_BY_API, "Eviction API: evicting")
            status = pod_statuses.disrupted(pod.object["status"], self._store.now_ms(), *why)
            pod = self._store.pods.replace(pod, {**pod.object, "metadata": dict(pod.meta), "status": status})
        self._store.begin_deletion(self._store.pods, pod, options.get("gracePeriodSeconds"))
        self.faults.after("evict")

    def uid_of(self, resource: str, namespace: str, name: str) -> str:
        """Looking at it is no call of the API and meets no fault."""
        return self._store.shelf(resource).require(namespace, name).uid

    @property
    def resource_version(self) -> str:
        """Newest version of any object of any kind, as text."""
        return str(self._store.counter.last)

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Do everything that is due now."""
        now_ms = self._store.now_ms()
        while (key := self._store.timers.pop_due(now_ms)) is not None:
            if key.startswith(taints.TIMER):
                self._store.evict_by_taint(key.removeprefix(taints.TIMER))
            else:
                self._store.kubelets.sync(key, now_ms)

    def next_due_ms(self) -> int | None:
        """Time of the next thing that `advance` has to do, in milliseconds since the epoch; None for never."""
        return self._store.timers.next_due_ms()

    def call_on_earlier(self, call: Callable[[], None]) -> None:
        """`call` whenever `next_due_ms` has come closer."""
        self._store.timers.on_earlier = call

    # -- the world: what tests and the lab do to it; what they do to nodes is in `machines` -----------------------

    def vanish(self, namespace: str, name: str) -> None:
        """Take a pod's object off at once, finalizers and kubelet notwithstanding."""
        pod = self._store.pods.require(namespace, name)
        self._forced.add(pod.uid)
        self._store.remove(self._store.pods, pod)

    def still_runs(self, pod: Json) -> bool:
        """
        Whether containers of a pod whose object is gone still hold its devices, and nobody vouched that they do not.

        Who forces an object off vouches, and so does who says that a node is out of service or takes its object away.
        """
        uid, node = pod["metadata"]["uid"], self._store.nodes.get("", (pod.get("spec") or {}).get("nodeName") or "")
        if node is None or uid in self._forced or not self._store.kubelets.has(uid):
            return False
        return all(taint["key"] != OUT_OF_SERVICE_TAINT for taint in node.object["spec"].get("taints", ()))

    def saved(self) -> SavedPods:
        """All but nodes, as of now, for a process that goes on later."""
        return self._store.saved()

    def put_back(self, saved: SavedPods) -> None:
        """Begin with what an earlier process had: before nodes are created, on a cluster that is empty."""
        self._store.put_back(saved)

    def close_watches(self) -> None:
        """End every open watch of every kind; clients open new ones where they stopped."""
        for shelf in self._store.shelves.values():
            shelf.log.close_all()

    def disturb_watches(self, drop: int = 0, repeat: int = 0) -> None:
        """Every open watch loses its next `drop` events and then ends with 410, or sends the next `repeat` twice."""
        for shelf in self._store.shelves.values():
            shelf.log.disturb(drop, repeat)

    def expire_history(self) -> None:
        """Forget every past change: a watch that is behind, and a list that goes on in pages, get 410."""
        self.pages.forget()
        for shelf in self._store.shelves.values():
            shelf.log.expire()

    def use_of(self, node: str) -> NodeUse | None:
        """Use by the node's live pods, as its kubelet counts it."""
        return self._store.kubelets.use_of(node)

    def sizes(self) -> dict[str, int]:
        """Number of objects in memory by kind; all but nodes and readers return to 0 when every pod is gone."""
        return {
            "pods": len(self._store.pods),
            "nodes": len(self._store.nodes),
            "runs": len(self._store.kubelets),
            "timers": len(self._store.timers),
            "readers": sum(shelf.log.readers for shelf in self._store.shelves.values()),
        }
