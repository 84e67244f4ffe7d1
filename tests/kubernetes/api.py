"""
The API server as a test's own hands use it: any object, one blocking call each, as any identity.

What is under test talks through the Cluster port; this is for preparing, breaking and looking.
"""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tessera.kernel.ports import ApiError

Json = dict[str, Any]

MERGE_PATCH, STRATEGIC_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"
_CALL_SECONDS = 120.0
TRIES = 5
_CLUSTER_WIDE = frozenset(
    {
        *("Namespace", "Node", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
        *("RuntimeClass", "StorageClass", "PersistentVolume", "DeviceClass", "ResourceSlice"),
        "NodeResourceTopology",
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
)
_PLURALS = {
    **{kind: f"{kind.lower()}es" for kind in ("PriorityClass", "RuntimeClass", "StorageClass", "DeviceClass")},
    **{kind: f"{kind.lower()[:-1]}ies" for kind in ("NetworkPolicy", "ValidatingAdmissionPolicy")},
    "NodeResourceTopology": "noderesourcetopologies",
}  # what adding an s does not give


class Api:
    """Every answer that is no success is an ApiError."""

    def __init__(self, url: str, token: str, ca: Path) -> None:
        self._url, self._token = url, token
        self.tls = ssl.create_default_context(cafile=str(ca))

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        address = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type, "Accept": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, sent, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=self.tls) as answer:
                decoded: Json = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            said = error.read()
            status = json.loads(said) if said.startswith(b"{") else {"message": said.decode(errors="replace")}
            raise ApiError(error.code, status.get("reason", ""), status.get("message", "")) from None
        return decoded

    def is_ready(self) -> bool:
        """Whether all has begun that the server begins with, such as the roles that are there by default."""
        request = urllib.request.Request(f"{self._url}/readyz", headers={"Authorization": f"Bearer {self._token}"})
        try:
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=self.tls):
                return True
        except OSError:  # an answer of 500 names what has not begun
            return False

    def get(self, path: str, **query: str) -> Json:
        """An object or a list; a server that had no time to answer is asked again."""
        for _ in range(TRIES - 1):
            try:
                return self.call("GET", path, query=query)
            except ApiError as error:
                if error.status != 504:
                    raise
        return self.call("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Json]:
        found: list[Json] = self.get(path, **query)["items"]
        return found

    def create(self, obj: Json) -> Json:
        """POST to where objects of its kind live; the namespace is `default` where it names none."""
        return self.call("POST", path_of(obj), obj)

    def apply(self, manifest: Path | str) -> list[Json]:
        """Create every document of a YAML file or text, or replace what is there, by server-side apply."""
        text = manifest.read_text() if isinstance(manifest, Path) else manifest
        documents = [one for one in yaml.safe_load_all(text) if one]
        query = {"fieldManager": "tests", "force": "true"}
        return [
            self.call("PATCH", f"{path_of(one)}/{one['metadata']['name']}", one, "application/apply-patch+yaml", query)
            for one in documents
        ]

    def patch(self, path: str, change: Json, content_type: str = MERGE_PATCH) -> Json:
        return self.call("PATCH", path, change, content_type)

    def delete(self, path: str, **options: Any) -> Json:
        return self.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})


def path_of(obj: Json) -> str:
    """`/apis/batch/v1/namespaces/default/jobs` for a Job."""
    version, kind = obj["apiVersion"], obj["kind"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    if kind in _CLUSTER_WIDE:
        return f"{base}/{plural}"
    return f"{base}/namespaces/{obj['metadata'].get('namespace', 'default')}/{plural}"
