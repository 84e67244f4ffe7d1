"""
The Cluster port straight onto the simulated cluster, with no server in between: the simulator's adapter.

Objects are decoded anew for each caller, so that nobody shares what another may change, as over HTTP. `drive` advances
the cluster by a clock, real or virtual, as the server does.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

import orjson

from tessera.kernel.kubernetes.api_paths import resource_of
from tessera.kernel.ports import ApiError, Clock, Objects, Reduce, WatchEvent, as_it_is
from tessera.kernel.tasks.waiting import wait_for
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.base import Json

FOLLOW_SECONDS = 0.5


async def _nothing(_operation: str) -> None: ...


class MemoryCluster:
    """
    One identity's view of the cluster.

    `verbs` are what it may do, None for everything; else 403. `before` and `after` are awaited around the effect of
    each operation, with its name: they may wait on the clock, or raise, which loses the call or its answer.
    """

    def __init__(self, core: SimCluster, clock: Clock, identity: str, verbs: frozenset[str] | None = None) -> None:
        self._core, self._clock, self._identity, self._verbs = core, clock, identity, verbs
        self.before: Callable[[str], Awaitable[None]] = _nothing
        self.after: Callable[[str], Awaitable[None]] = _nothing

    async def close(self) -> None:
        """Close nothing: no connection stands behind this adapter."""

    async def list(
        self, kind: str, label_selector: str = "", field_selector: str = "", reduce: Reduce = as_it_is
    ) -> tuple[list[Json], str]:
        """Whole list at one moment, in no pages; every object is decoded anew and then reduced."""
        resource = self._listed(kind)
        await self._enter("list", resource)
        found, version = self._core.list(resource, label_selector, field_selector)
        await self.after("list")
        return [reduce(_as_in_lists(orjson.loads(one.json))) for one in found], version

    def _listed(self, kind: str) -> str:
        api_version, _, name = kind.rpartition("/")
        return self._core.resource(api_version, name) if api_version else name

    async def watch(
        self, kind: str, resource_version: str, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes as soon as the core has them, without a time limit; ends when the core closes the watch."""
        resource = self._listed(kind)
        await self._enter("watch", resource)
        watch = self._core.open_watch(resource, resource_version, label_selector, field_selector)
        ready = asyncio.Event()
        watch.on_ready = ready.set
        try:
            while not watch.closed:
                ready.clear()
                events = watch.take()
                for change, json in events:
                    yield WatchEvent(change, orjson.loads(json))
                if not events:
                    await ready.wait()
        finally:
            watch.close()

    async def get_pod(self, namespace: str, name: str) -> Json:
        """Copy of the pod, which the caller may change."""
        await self._enter("get")
        found = self._core.get("pods", namespace, name)
        await self.after("get")
        return _decoded(found)

    async def read_log(
        self, namespace: str, name: str, *, follow: bool = False, tail_lines: int = 0, since_seconds: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """A line at a time; with `follow` the core is looked at every half second."""
        await self._enter("log", "pods/log")
        log = self._core.read_log(namespace, name)
        lines = log.newest(tail_lines, self._clock.now_ms() - since_seconds * 1000 if since_seconds else 0)
        yield b""
        while True:
            for line in lines:
                yield line.to_bytes()
            if log.is_whole or not follow:
                return
            await self._clock.sleep(FOLLOW_SECONDS)
            sent, log = len(log.lines), self._core.read_log(namespace, name, is_open=True)
            lines = log.lines[sent:]

    async def create_pod(self, namespace: str, pod: Json) -> Json:
        """Store a copy of `pod`; the pod returned is another copy."""
        await self._enter("create")
        created = self._core.create("pods", namespace, orjson.loads(orjson.dumps(pod)))
        await self.after("create")
        return _decoded(created)

    async def bind_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str = "",
    ) -> None:
        """Bind in one atomic call of the core; a `resource_version` of "" is no condition."""
        await self._enter("bind")
        meta = {"uid": uid, "annotations": dict(annotations), "resourceVersion": resource_version}
        self._core.bind(namespace, name, {"metadata": meta, "target": {"name": node}})
        await self.after("bind")

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None = None) -> None:
        """Begin the deletion in the core, held to the UID; simulated kubelets then end the pod in grace."""
        await self._enter("delete")
        self._core.delete("pods", namespace, name, _delete_options(uid, grace_seconds))
        await self.after("delete")

    async def evict_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None = None, dry_run: bool = False
    ) -> None:
        """Evict through the core, held to the UID; budgets of the simulated cluster count."""
        await self._enter("evict")
        options = _delete_options(uid, grace_seconds) | ({"dryRun": ["All"]} if dry_run else {})
        self._core.evict(namespace, name, {"deleteOptions": options})
        await self.after("evict")

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> None:
        """Merge patch in the core, held to the UID and, where one is given, to the version."""
        await self._enter("patch")
        meta = {"uid": uid, "annotations": dict(annotations)}
        held = {"resourceVersion": resource_version} if resource_version else {}
        self._core.patch("pods", namespace, name, {"metadata": meta | held})
        await self.after("patch")

    async def label_pod(self, namespace: str, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """Merge patch in the core, held to the UID."""
        await self._enter("patch")
        self._core.patch("pods", namespace, name, {"metadata": {"uid": uid, "labels": dict(labels)}})
        await self.after("patch")

    async def limit_pod(self, namespace: str, name: str, uid: str, seconds: int) -> None:
        """Merge patch in the core, held to the UID."""
        await self._enter("patch")
        limited = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": seconds}}
        self._core.patch("pods", namespace, name, limited)
        await self.after("patch")

    async def resize_pod(self, namespace: str, name: str, uid: str, container: str, resources: Json) -> None:
        """Strategic patch of the subresource in the core, held to the UID; simulated kubelets then take it."""
        await self._enter("patch")
        wanted = {"containers": [{"name": container, "resources": orjson.loads(orjson.dumps(resources))}]}
        body: Json = {"metadata": {"uid": uid}, "spec": wanted}
        self._core.patch("pods", namespace, name, body, "resize", by_keys=True)
        await self.after("patch")

    async def annotate_node(self, name: str, resource_version: str, annotations: Mapping[str, str]) -> None:
        """Merge patch in the core, held to the node's version."""
        await self._enter("patch")
        wanted = {"resourceVersion": resource_version, "annotations": dict(annotations)}
        self._core.patch("nodes", "", name, {"metadata": wanted})
        await self.after("patch")

    async def label_node(self, name: str, resource_version: str, labels: Mapping[str, str | None]) -> None:
        """Merge patch in the core, held to the node's version."""
        await self._enter("patch")
        self._core.patch("nodes", "", name, {"metadata": {"resourceVersion": resource_version, "labels": dict(labels)}})
        await self.after("patch")

    async def taint_node(
        self, name: str, resource_version: str, taints: Sequence[Json], annotations: Mapping[str, str | None]
    ) -> None:
        """Merge patch in the core, held to the node's version."""
        await self._enter("patch")
        meta = {"resourceVersion": resource_version, "annotations": dict(annotations)}
        spec = {"taints": [dict(taint) for taint in taints]}
        self._core.patch("nodes", "", name, {"metadata": meta, "spec": spec})
        await self.after("patch")

    async def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """Merge patch of the status in the core, with a copy of `patch`."""
        await self._enter("patch")
        self._core.patch("pods", namespace, name, orjson.loads(orjson.dumps(patch)), "status")
        await self.after("patch")

    async def patch_status(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """Merge patch of a status in the core; an unknown kind is refused (404) before rights are checked."""
        resource = self._core.resource(api_version, kind)
        await self._enter("patch", resource)
        self._core.patch(resource, namespace, name, orjson.loads(orjson.dumps(patch)), "status")
        await self.after("patch")

    async def create_event(self, namespace: str, event: Json) -> None:
        """Store a copy of `event`. Raises ApiError 409 when the name is taken."""
        await self._enter("create", "events")
        self._core.create("events", namespace, orjson.loads(orjson.dumps(event)))
        await self.after("create")

    async def list_events(self, namespace: str, uid: str) -> Objects:
        """Copies of the events, all in one answer."""
        await self._enter("list", "events")
        found, _ = self._core.list("events", "", f"metadata.namespace={namespace},involvedObject.uid={uid}")
        await self.after("list")
        return [_decoded(one) for one in found]

    async def may(self, namespace: str, verb: str, resource: str, group: str = "") -> bool:
        """Say whether `verbs` has the verb; namespace, resource and group make no difference here."""
        return self._verbs is None or verb in self._verbs

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """Copy of any object that the core keeps, which the caller may change."""
        await self._enter("get", resource_of(kind))
        found = self._core.get(self._core.resource(api_version, kind), namespace, name)
        await self.after("get")
        return _decoded(found)

    async def create_object(self, namespace: str, obj: Json) -> Json:
        """Store a copy of `obj`; an unknown kind is refused (404) before rights are checked."""
        resource = self._core.resource(obj["apiVersion"], obj["kind"])
        await self._enter("create", resource)
        created = self._core.create(resource, namespace, orjson.loads(orjson.dumps(obj)))
        await self.after("create")
        return _decoded(created)

    async def patch_object(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """Merge patch in the core, with a copy of `patch`."""
        await self._enter("patch", resource_of(kind))
        self._core.patch(resource_of(kind), namespace, name, orjson.loads(orjson.dumps(patch)))
        await self.after("patch")

    async def remove_finalizer(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        """Look and patch in one step, held to the UID; the patch is left out when the finalizer is off."""
        await self._enter("patch")
        meta = _decoded(self._core.get("pods", namespace, name))["metadata"]
        finalizers = meta.get("finalizers") or []
        if meta["uid"] != uid or finalizer in finalizers:
            rest = [one for one in finalizers if one != finalizer]
            self._core.patch("pods", namespace, name, {"metadata": {"uid": uid, "finalizers": rest}})
        await self.after("patch")

    async def create_service(self, namespace: str, service: Json) -> Json:
        """Store a copy of `service`; no port or address comes to be."""
        await self._enter("create", "services")
        created = self._core.create("services", namespace, orjson.loads(orjson.dumps(service)))
        await self.after("create")
        return _decoded(created)

    async def get_service(self, namespace: str, name: str) -> Json:
        """Copy of the service, which the caller may change."""
        await self._enter("get", "services")
        found = self._core.get("services", namespace, name)
        await self.after("get")
        return _decoded(found)

    async def delete_service(self, namespace: str, name: str, uid: str) -> None:
        """Delete in the core, held to the UID; a service has no grace period."""
        await self._enter("delete", "services")
        self._core.delete("services", namespace, name, _delete_options(uid, None))
        await self.after("delete")

    async def create_secret(self, namespace: str, secret: Json) -> None:
        """Store a copy of `secret`, which goes with an object that owns it."""
        await self._enter("create", "secrets")
        self._core.create("secrets", namespace, orjson.loads(orjson.dumps(secret)))
        await self.after("create")

    async def create_ingress(self, namespace: str, ingress: Json) -> None:
        """Store a copy of `ingress`, which goes with an object that owns it; nothing is routed."""
        await self._enter("create", "ingresses")
        self._core.create("ingresses", namespace, orjson.loads(orjson.dumps(ingress)))
        await self.after("create")

    async def _enter(self, verb: str, kind: str = "pods") -> None:
        await self._clock.sleep(0)  # others run between two calls, as they would over a network
        if self._verbs is not None and verb not in self._verbs:
            message = f'{kind} is forbidden: User "{self._identity}" cannot {verb} resource "{kind}"'
            raise ApiError(403, "Forbidden", message)
        await self.before(verb)


def _decoded(stored: Version) -> Json:
    decoded: Json = orjson.loads(stored.json)
    return decoded


def _delete_options(uid: str, grace_seconds: int | None) -> Json:
    options: Json = {"preconditions": {"uid": uid}}
    return options if grace_seconds is None else {**options, "gracePeriodSeconds": grace_seconds}


def _as_in_lists(found: Json) -> Json:
    """An item as lists have it: for its own kinds the API server says kind and version once for the whole list."""
    found.pop("kind", None)
    found.pop("apiVersion", None)
    return found


async def drive(cluster: SimCluster, clock: Clock) -> None:
    """Advance the cluster whenever something is due, until cancelled."""
    earlier = asyncio.Event()
    cluster.call_on_earlier(earlier.set)
    while True:
        cluster.advance()
        earlier.clear()
        due_ms = cluster.next_due_ms()
        if due_ms is None:
            await earlier.wait()
        else:
            await wait_for(earlier, clock, max(due_ms - clock.now_ms(), 0) / 1000)
