"""
The Kubernetes API behind the Cluster port.

Raw JSON over kept connections, and a bound on calls in flight. Deletions and finalizers have a lane of their own, so
that a rush of creates never delays freeing GPUs; so has what users are told, so that thousands of pods that wait do
not delay those that can start.

The package's own client takes four times the CPU for a call and eight times for a list (ADR 0030).
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.api_paths import list_path, object_path
from tessera.kernel.kubernetes.connections import Connections, HttpAnswer, HttpStream
from tessera.kernel.ports import ApiError, Objects, Reduce, WatchEvent, as_it_is
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import CLAIMS_API

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_WATCH_SECONDS = 300  # asked of the server; a silence clearly longer than this is a dead connection
_WATCH_SILENCE_SECONDS = 330.0
Listed = tuple[Objects, str]
# How a merge patch that names another UID is refused: as a forbidden change (422), where all else says conflict (409).
_UID_CHANGED = "metadata.uid: Invalid value"
_PAGE = 500  # objects asked for at once: a page is answered well within the time-out, however many there are


_REVIEWS = "authorization.k8s.io/v1"


class HttpCluster:
    """
    A cluster at `base_url`.

    `token` is a bearer token, or a function that gives the current one (mounted tokens rotate); "" sends none.
    `client` are the files of a certificate and its key by which the server knows us.
    `in_flight` bounds creates, binds and reads; `in_flight_releases` deletions and finalizers; `in_flight_told`
    conditions and events.
    """

    def __init__(
        self,
        base_url: str,
        token: str | Callable[[], str] = "",
        ca_file: Path | None = None,
        *,
        client: tuple[Path, Path] | None = None,
        in_flight: int = 48,
        in_flight_releases: int = 16,
        in_flight_told: int = 8,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._connections = Connections(self._base_url, lambda: tls_context(ca_file, client))
        self._lane = asyncio.Semaphore(in_flight)
        self._release_lane = asyncio.Semaphore(in_flight_releases)
        self._told_lane = asyncio.Semaphore(in_flight_told)
        self._timeout_seconds = timeout_seconds

    @property
    def url(self) -> str:
        """Base URL of the API server, without a slash at the end."""
        return self._base_url

    async def close(self) -> None:
        """Close the pooled connections; a later call opens new ones."""
        await self._connections.close()

    async def list(
        self, kind: str, label_selector: str = "", field_selector: str = "", reduce: Reduce = as_it_is
    ) -> Listed:
        """
        Page after page, all as of one version. When the server forgets that version meanwhile (410), the list is read
        again whole: a second try in pages might be overtaken like the first.
        """
        selected = _selecting(label_selector, field_selector)
        try:
            return await self._pages(kind, {**selected, "limit": str(_PAGE)}, reduce)
        except _PageLost:
            return await self._pages(kind, selected, reduce)

    async def _pages(self, kind: str, params: Mapping[str, str], reduce: Reduce) -> Listed:
        found: Objects = []
        place = ""
        while True:
            asked = {**params, "continue": place} if place else params
            try:
                answer = _decoded(await self._call("GET", list_path(kind), params=asked))
            except ApiError as error:
                if place and error.status == 410:
                    raise _PageLost from error
                raise
            found.extend(map(reduce, answer.get("items") or ()))
            place = answer["metadata"].get("continue") or ""
            if not place:
                return found, answer["metadata"]["resourceVersion"]

    async def watch(
        self, kind: str, resource_version: str, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Ask the server for at most 300 s of changes. Raises Transient when cut off, or silent for 330 s."""
        params = {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
            **_selecting(label_selector, field_selector),
        }
        target = _target(list_path(kind), params)
        try:
            async with self._connections.stream(target, self._headers(), _WATCH_SILENCE_SECONDS) as stream:
                if stream.status != 200:
                    raise _refusal(await stream.whole())
                async for line in _lines(stream):
                    yield _event(line)
        except OSError as error:
            raise Transient(f"watch of {kind}: {error!r}") from error

    async def get_pod(self, namespace: str, name: str) -> Json:
        """One GET, which waits its turn among creates and binds."""
        return _decoded(await self._call("GET", _pod(namespace, name)))

    async def read_log(
        self, namespace: str, name: str, *, follow: bool = False, tail_lines: int = 0, since_seconds: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """One GET outside the lanes, since it may last as long as the pod. Raises Transient when it is cut off."""
        asked = {"follow": int(follow), "tailLines": tail_lines, "sinceSeconds": since_seconds}
        params = {key: "true" if key == "follow" else str(value) for key, value in asked.items() if value}
        target, silence = _target(f"{_pod(namespace, name)}/log", params), None if follow else 30
        try:
            async with self._connections.stream(target, self._headers(), silence) as stream:
                if stream.status == 204:  # of a pod without a node; of one that has not started yet it is 400
                    raise ApiError(400, "BadRequest", f"pod {name} has no node yet")
                if stream.status != 200:
                    raise _refusal(await stream.whole())
                yield b""
                while piece := await stream.piece():
                    yield piece
        except OSError as error:
            raise Transient(f"log of {name}: {error!r}") from error

    async def create_pod(self, namespace: str, pod: Json) -> Json:
        """One POST, bounded by the lane of creates; returns the pod as the server completed it."""
        return _decoded(await self._call("POST", f"/api/v1/namespaces/{namespace}/pods", body=pod))

    async def bind_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str = "",
    ) -> None:
        """One POST of a Binding that carries UID, version and annotations: the server checks and writes at once."""
        version = {"resourceVersion": resource_version} if resource_version else {}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations), **version},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", f"{_pod(namespace, name)}/binding", body=binding)

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None = None) -> None:
        """One DELETE with the UID as precondition, in the lane of releases: no rush of creates delays a release."""
        options = _delete_options(uid, grace_seconds)
        await self._call("DELETE", _pod(namespace, name), body=options, lane=self._release_lane)

    async def evict_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None = None, dry_run: bool = False
    ) -> None:
        """
        Looks at the UID first: the server tries an eviction again and again while its precondition fails, and holds
        the call for ten seconds before it says so.
        """
        meta = await self._look(namespace, name)
        if meta["uid"] != uid:
            raise _another_uid(name, meta["uid"], uid)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, grace_seconds) | ({"dryRun": ["All"]} if dry_run else {}),
        }
        await self._call("POST", f"{_pod(namespace, name)}/eviction", body=eviction, lane=self._release_lane)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> None:
        """One merge patch that names UID and version, in the lane of releases."""
        meta = {"uid": uid, "annotations": dict(annotations)}
        held = {"resourceVersion": resource_version} if resource_version else {}
        await self._patch(namespace, name, {"metadata": meta | held}, _MERGE_PATCH)

    async def label_pod(self, namespace: str, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """Merge patch that names the UID, in the lane of releases."""
        await self._patch(namespace, name, {"metadata": {"uid": uid, "labels": dict(labels)}}, _MERGE_PATCH)

    async def limit_pod(self, namespace: str, name: str, uid: str, seconds: int) -> None:
        """Merge patch that names the UID, in the lane of releases."""
        limited = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": seconds}}
        await self._patch(namespace, name, limited, _MERGE_PATCH)

    async def resize_pod(self, namespace: str, name: str, uid: str, container: str, resources: Json) -> None:
        """Strategic merge patch of the subresource that names the UID, among creates and binds: room is held for it."""
        wanted = {"containers": [{"name": container, "resources": resources}]}
        body, path = {"metadata": {"uid": uid}, "spec": wanted}, f"{_pod(namespace, name)}/resize"
        await self._call("PATCH", path, body=body, content_type=_STRATEGIC_PATCH)

    async def annotate_node(self, name: str, resource_version: str, annotations: Mapping[str, str]) -> None:
        """One merge patch that names the version, in the lane of creates and binds."""
        wanted = {"metadata": {"resourceVersion": resource_version, "annotations": dict(annotations)}}
        await self._merge(f"/api/v1/nodes/{name}", wanted)

    async def label_node(self, name: str, resource_version: str, labels: Mapping[str, str | None]) -> None:
        """One merge patch that names the version, in the lane of creates and binds."""
        wanted = {"metadata": {"resourceVersion": resource_version, "labels": dict(labels)}}
        await self._merge(f"/api/v1/nodes/{name}", wanted)

    async def taint_node(
        self, name: str, resource_version: str, taints: Sequence[Json], annotations: Mapping[str, str | None]
    ) -> None:
        """One merge patch that names the version, in the lane of creates and binds."""
        meta = {"resourceVersion": resource_version, "annotations": dict(annotations)}
        await self._merge(f"/api/v1/nodes/{name}", {"metadata": meta, "spec": {"taints": list(taints)}})

    async def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """One merge patch of the subresource, in the lane of what users are told."""
        await self._merge(f"{_pod(namespace, name)}/status", patch, self._told_lane)

    async def patch_status(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """
        One merge patch of the object's `status` subresource, in the lane of what users are told. In that of claims
        devices are allocated: it waits among the binds.
        """
        lane = None if api_version == CLAIMS_API else self._told_lane
        await self._merge(f"{object_path(api_version, kind, namespace, name)}/status", patch, lane)

    async def create_event(self, namespace: str, event: Json) -> None:
        """One POST in the lane of what users are told: events never delay pods that can start."""
        await self._call("POST", f"/api/v1/namespaces/{namespace}/events", body=event, lane=self._told_lane)

    async def list_events(self, namespace: str, uid: str) -> Objects:
        """One GET in the lane of what users are told: a server may look through all events of a namespace for it."""
        params = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_PAGE)}
        path = f"/api/v1/namespaces/{namespace}/events"
        answer = _decoded(await self._call("GET", path, params=params, lane=self._told_lane))
        found: Objects = answer["items"]
        return found

    async def may(self, namespace: str, verb: str, resource: str, group: str = "", user: str = "") -> bool:
        """
        Whether we may do it there, or `user` may.

        Everybody may ask of himself; to ask of others takes the right to create SubjectAccessReviews.
        """
        name, _, sub = resource.partition("/")
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": sub}
        kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
        whose: Json = {"user": user, "groups": groups_of(user)} if user else {}
        spec = {"resourceAttributes": asked, **whose}
        review = {"apiVersion": _REVIEWS, "kind": kind, "spec": spec}
        answer = _decoded(await self._call("POST", f"/apis/{_REVIEWS}/{kind.lower()}s", body=review))
        return bool(answer["status"]["allowed"])

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """One GET by the kind's plural path; a kind that is not installed answers 404, like a missing object."""
        return _decoded(await self._call("GET", object_path(api_version, kind, namespace, name)))

    async def create_object(self, namespace: str, obj: Json) -> Json:
        """One POST in the lane of creates and binds."""
        path = object_path(obj["apiVersion"], obj["kind"], namespace, "").removesuffix("/")
        return _decoded(await self._call("POST", path, body=obj))

    async def patch_object(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """One merge patch in the lane of releases."""
        await self._merge(object_path(api_version, kind, namespace, name), patch, self._release_lane)

    async def apply_object(self, wanted: Json, owner: str) -> None:
        """One server-side apply: create it, or set the fields that `wanted` names, whoever set them before."""
        meta = wanted["metadata"]
        path = object_path(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
        whose = {"fieldManager": owner, "force": "true"}
        await self._call("PATCH", path, body=wanted, params=whose, content_type=_APPLY_PATCH)

    async def remove_finalizer(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        """
        One call when ours is the only finalizer, as it nearly always is: a JSON patch that tests just that and the
        UID. When a test fails (422), look and take off ours alone, held to the UID and version that were looked at.
        """
        only_ours = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/finalizers", "value": [finalizer]},
            {"op": "remove", "path": "/metadata/finalizers"},
        ]
        try:
            await self._patch(namespace, name, only_ours, _JSON_PATCH)
        except ApiError as error:
            if error.status != 422:
                raise
            await self._remove_one_of_many(namespace, name, uid, finalizer)

    async def _merge(self, path: str, wanted: Json, lane: asyncio.Semaphore | None = None) -> None:
        """A merge patch that frees nothing, and so waits its turn among creates and binds where no lane is named."""
        await self._call("PATCH", path, body=wanted, content_type=_MERGE_PATCH, lane=lane)

    async def _look(self, namespace: str, name: str) -> Json:
        """A pod's metadata, in the lane of releases: what frees devices waits for no create."""
        meta: Json = _decoded(await self._call("GET", _pod(namespace, name), lane=self._release_lane))["metadata"]
        return meta

    async def _remove_one_of_many(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        meta = await self._look(namespace, name)
        if meta["uid"] != uid:
            raise _another_uid(name, meta["uid"], uid)
        finalizers = meta.get("finalizers") or []
        if finalizer not in finalizers:
            return
        rest = [one for one in finalizers if one != finalizer]
        wanted = {"uid": uid, "resourceVersion": meta["resourceVersion"], "finalizers": rest}
        await self._patch(namespace, name, {"metadata": wanted}, _MERGE_PATCH)

    async def create_service(self, namespace: str, service: Json) -> Json:
        """One POST in the lane of creates and binds."""
        return _decoded(await self._call("POST", f"/api/v1/namespaces/{namespace}/services", body=service))

    async def get_service(self, namespace: str, name: str) -> Json:
        """One GET, which waits its turn among creates and binds."""
        return _decoded(await self._call("GET", f"/api/v1/namespaces/{namespace}/services/{name}"))

    async def delete_service(self, namespace: str, name: str, uid: str) -> None:
        """One DELETE with the UID as precondition, in the lane of releases."""
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        await self._call("DELETE", path, body=_delete_options(uid, None), lane=self._release_lane)

    async def create_secret(self, namespace: str, secret: Json) -> None:
        """One POST in the lane of creates and binds; the server's answer is not decoded."""
        await self._call("POST", f"/api/v1/namespaces/{namespace}/secrets", body=secret)

    async def create_ingress(self, namespace: str, ingress: Json) -> None:
        """One POST in the lane of creates and binds; the server's answer is not decoded."""
        await self._call("POST", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses", body=ingress)

    async def _patch(self, namespace: str, name: str, patch: Any, content_type: str) -> None:
        path = _pod(namespace, name)
        await self._call("PATCH", path, body=patch, content_type=content_type, lane=self._release_lane)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        lane: asyncio.Semaphore | None = None,
    ) -> bytes:
        """The body of a success, undecoded: most callers need to know only that it was one."""
        sent = None if body is None else orjson.dumps(body)
        target = _target(path, params)
        async with lane or self._lane:
            headers = self._headers("" if body is None else content_type)  # now: a token may be renewed in the meantime
            try:
                answer = await self._connections.call(method, target, headers, sent, self._timeout_seconds)
            except OSError as error:
                raise Transient(f"{method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise _refusal(answer)
        return answer.body

    def _headers(self, content_type: str = "") -> str:
        """Raises Transient, which does not show it, for a token that would break out of its line."""
        headers = f"Accept: {_JSON}\r\nUser-Agent: tessera\r\n"
        if content_type:
            headers += f"Content-Type: {content_type}\r\n"
        token = self._token if isinstance(self._token, str) else self._token()
        if not token:
            return headers
        if not (token.isascii() and token.isprintable()):
            raise Transient("the token of the cluster is none: it has characters that no header can carry")
        return f"{headers}Authorization: Bearer {token}\r\n"


def tls_context(ca_file: Path | None, client: tuple[Path, Path] | None) -> ssl.SSLContext:
    """Trust in `ca_file` (None: the machine's), and our certificate and key. Raises OSError for files that are none."""
    tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    if client is not None:
        tls.load_cert_chain(*client)
    return tls


class _PageLost(Exception):
    """The server no longer knows the version of which the first pages were."""


def groups_of(user: str) -> list[str]:
    """The groups that the API server puts a service account into."""
    account = user.split(":")
    if account[:2] != ["system", "serviceaccount"] or len(account) != 4:
        return ["system:authenticated"]
    return ["system:serviceaccounts", f"system:serviceaccounts:{account[2]}", "system:authenticated"]


def _selecting(label_selector: str, field_selector: str) -> dict[str, str]:
    asked = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in asked.items() if value}


def _pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _delete_options(uid: str, grace_seconds: int | None) -> Json:
    options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    return options if grace_seconds is None else {**options, "gracePeriodSeconds": grace_seconds}


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params, quote_via=quote)}" if params else path


async def _lines(stream: HttpStream) -> AsyncIterator[bytes]:
    """Lines of the text, each whole."""
    rest = b""
    while piece := await stream.piece():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


def _event(line: bytes) -> WatchEvent:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Transient(f"the watch sent what is no JSON: {error}") from error
    if event["type"] == "ERROR":
        status = event["object"]
        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
    return WatchEvent(event["type"], event["object"])


def _decoded(answer: bytes) -> Json:
    try:
        decoded: Json = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise Transient(f"the API answered with what is no JSON: {error}") from error
    return decoded


def _another_uid(name: str, found: str, wanted: str) -> ApiError:
    return ApiError(409, "Conflict", f"pod {name} now has the UID {found}, not {wanted}")


def _refusal(answer: HttpAnswer) -> ApiError:
    """The API's Status object; a proxy in between may answer with something else."""
    retry_after = float(answer.wait) if answer.wait.isdecimal() else None
    try:
        status = orjson.loads(answer.body)
        reason, message = status["reason"], status["message"]
        if answer.status == 422 and _UID_CHANGED in message:
            return ApiError(409, "Conflict", message)
        return ApiError(answer.status, reason, message, retry_after)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = " ".join(answer.body[:200].decode(errors="replace").split())
        return ApiError(answer.status, answer.reason, text, retry_after)
