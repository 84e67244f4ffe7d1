"""
kube-scheduler's part: worlds on a real API server, several copies of each beside each other, until nothing moves.

A copy is at rest once each of its pods has a node, or was told that none suits.
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local
from typing import Any
from urllib.parse import urlencode, urlsplit

from tessera.kernel.ports import ApiError
from tests.kubernetes.api import Api
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.oracle.judging import PlacedPod
from tests.kubernetes.oracle.worlds import COPY_LABEL, GANG_LABEL, NAMESPACE, WORLD_LABEL, OracleWorld

Json = dict[str, Any]
ROUNDS, AT_ONCE, REST_SECONDS = 3, 4, 60.0
CLUSTER_WIDE = ("/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices", "/apis/resource.k8s.io/v1/deviceclasses")
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_NO_NODE = ("nodes are available", 'running "DynamicResources" filter plugin')
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True)
class Objects:
    """What the API server has of a copy of a world; `claims` by name, of all pods."""

    nodes: list[Json]
    slices: list[Json]
    classes: list[Json]
    templates: dict[str, Json]
    claims: dict[str, Json]
    pods: list[Json]

    def gangs(self) -> dict[str, list[Json]]:
        """Pods by gang, in the order of their names."""
        found: dict[str, list[Json]] = {}
        for pod in sorted(self.pods, key=lambda each: str(each["metadata"]["name"])):
            found.setdefault(pod["metadata"]["labels"][GANG_LABEL], []).append(pod)
        return found

    def specs_of(self, pod: Json) -> list[Json]:
        """What each claim of a pod asks for."""
        return [
            self.templates[entry["resourceClaimTemplateName"]]["spec"]["spec"]
            if "resourceClaimTemplateName" in entry
            else self.claims[entry["resourceClaimName"]]["spec"]
            for entry in pod["spec"]["resourceClaims"]
        ]

    def claims_of(self, pod: Json) -> list[Json]:
        """The claims of a pod, in the order of its spec."""
        # By what the claim says of itself: a pod's status sometimes lacks one of several, though the pod is bound.
        uid = pod["metadata"]["uid"]
        made = {
            one["metadata"]["annotations"][POD_CLAIM]: name
            for name, one in self.claims.items()
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ())
        }
        names = [made.get(one["name"]) or one["resourceClaimName"] for one in pod["spec"]["resourceClaims"]]
        return [self.claims[name] for name in names]

    def placed(self, pod: Json) -> PlacedPod:
        """A pod that has a node."""
        had = [
            (one["spec"], one["status"].get("allocation", {}).get("devices", {}).get("results") or [])
            for one in self.claims_of(pod)
        ]
        return PlacedPod(pod["metadata"]["name"], pod["spec"]["nodeName"], tuple(had))

    def whole_gangs(self) -> list[str]:
        """Gangs of which every pod has a node."""
        return [name for name, pods in self.gangs().items() if all(map(_is_bound, pods))]


class KeptApi(Api):
    """The same calls on a connection that is kept, one for each thread: thousands of small objects are written."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane.url, plane.token(), plane.ca_file)
        self._where, self._kept = urlsplit(plane.url), local()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        connection = getattr(self._kept, "connection", None)
        if connection is None:
            host, port = str(self._where.hostname), self._where.port
            connection = self._kept.connection = http.client.HTTPSConnection(host, port, timeout=30, context=self.tls)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        address = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, address, None if body is None else json.dumps(body), headers)
        with connection.getresponse() as answer:
            said: Json = json.loads(answer.read())
        if answer.status >= 300:
            raise ApiError(answer.status, said.get("reason", ""), said.get("message", ""))
        return said

    def labelled(self, path: str, label: str, value: str) -> list[Json]:
        """Objects with a label of that value."""
        return self.items(path, labelSelector=f"{label}={value}")


class Placing:
    """Worlds on the API server of a plane with kube-scheduler."""

    def __init__(self, plane: ControlPlane) -> None:
        self.api, self._pool = KeptApi(plane), ThreadPoolExecutor(AT_ONCE)
        admin = {"resource.kubernetes.io/admin-access": "true"}
        meta = {"name": NAMESPACE, "labels": admin}
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        plane.wait_for_namespace(NAMESPACE)

    def play(self, worlds: Sequence[OracleWorld], rounds: int = ROUNDS) -> dict[int, list[Objects]]:
        """Each world in so many copies, as kube-scheduler leaves it; nothing of them stays on the server."""
        copies = [(world, copy) for world in worlds for copy in range(rounds)]
        self._create([one for world in worlds for one in world.shared])
        self._create([one for world, copy in copies for one in world.cluster(copy)])
        # A pod is decided on as soon as its claims are there, so that everything else is there before.
        self._create([one for world, copy in copies for one in world.work(copy) if one["kind"] == "ResourceClaim"])
        self._create([one for world, copy in copies for one in world.work(copy) if one["kind"] == "Pod"])
        try:
            for world in worlds:
                wait_until(lambda world=world: self._is_at_rest(world), f"world {world.seed} is at rest", REST_SECONDS)
            return {world.seed: [self._read(world, copy) for copy in range(rounds)] for world in worlds}
        finally:
            self._delete(worlds)

    def _create(self, objects: Sequence[Json]) -> None:
        list(self._pool.map(self.api.create, objects))

    def _is_at_rest(self, world: OracleWorld) -> bool:
        pods = self.api.labelled(PODS, WORLD_LABEL, str(world.seed))
        return all(_is_bound(pod) or _was_refused(pod) for pod in pods)

    def _read(self, world: OracleWorld, copy: int) -> Objects:
        key, label = f"{world.seed}-{copy}", COPY_LABEL
        pods = self.api.labelled(PODS, label, key)
        claims = {one["metadata"]["name"]: one for one in self.api.items(CLAIMS)}
        uids = {pod["metadata"]["uid"] for pod in pods}
        mine = {
            name: one
            for name, one in claims.items()
            if one["metadata"].get("labels", {}).get(COPY_LABEL) == key
            or any(owner["uid"] in uids for owner in one["metadata"].get("ownerReferences") or ())
        }
        templates = self.api.labelled(TEMPLATES, WORLD_LABEL, str(world.seed))
        return Objects(
            self.api.labelled(CLUSTER_WIDE[0], label, key),
            self.api.labelled(CLUSTER_WIDE[1], label, key),
            self.api.labelled(CLUSTER_WIDE[2], WORLD_LABEL, str(world.seed)),
            {one["metadata"]["name"]: one for one in templates},
            mine,
            pods,
        )

    def _delete(self, worlds: Sequence[OracleWorld]) -> None:
        """Pods first: their claims go with them, freed by the controller."""
        these = {"labelSelector": f"{WORLD_LABEL} in ({', '.join(str(world.seed) for world in worlds)})"}
        self.api.call("DELETE", PODS, query=these | {"gracePeriodSeconds": "0"})
        self.api.call("DELETE", CLAIMS, query=these)
        wait_until(lambda: not self.api.items(CLAIMS), "the claims are gone", REST_SECONDS)
        for path in (TEMPLATES, *CLUSTER_WIDE):
            self.api.call("DELETE", path, query=these)


def _is_bound(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _was_refused(pod: Json) -> bool:
    """Whether the scheduler looked at it with all of its claims there, and found no node, or ended with an error."""
    told = [one for one in pod["status"].get("conditions") or () if one["type"] == "PodScheduled"]
    message = told[0].get("message", "") if told else ""
    return bool(told) and told[0]["status"] == "False" and any(each in message for each in _NO_NODE)
