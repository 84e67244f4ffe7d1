"""
Identities kept in a Kubernetes namespace: the directory of credentials in one Secret, and one per service and for the
administrator.

`synchronise` brings a directory and the Secrets to the same: what only one of the two has, the other gets. A Job with
an empty directory makes the identities of a new installation and keeps those of an old one; an operator's machine
fetches them, lets `tessera apply` add tenants, and brings these back.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tessera.kernel import ids
from tessera.kernel.errors import StartupError
from tessera.kernel.ports import ApiError
from tessera.kernel.process.files import write_private
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities
from tessera_schemas import subjects
from tessera_schemas.base import Json
from tessera_schemas.shard.services import SERVICES

OWNER = "tessera-init"
"""Field manager of the Secrets."""
IDENTITY_KEY = "identity.json"
ROUTE_PASSWORD = "nats-route-password"  # noqa: S105 -- the name of a file
SECRET_BYTES_MAX = 1024 * 1024


class SecretStore(Protocol):
    """The part of the Kubernetes API that is needed here."""

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """One object; ApiError 404 when it is not there."""

    async def apply_object(self, wanted: Json, owner: str) -> None:
        """Server-side apply: create it, or set the fields that are named."""


async def synchronise(root: Path, shards: Sequence[str], store: SecretStore, namespace: str, release: str) -> list[str]:
    """
    Make the identities of these shards where they are missing; then directory and Secrets hold the same.

    Secrets are named after the release: `<release>-credentials` is the directory, `<release>-<name>` (of a further
    shard `<release>-<name>-<shard>`) one identity; `<release>-nats-auth` and `<release>-redis-acl` are the servers'.
    Returns the names of the Secrets that were written. Raises StartupError when both have an identity and its passwords
    differ, or when a Secret would be too large; ApiError, Transient.
    """
    stored = await _read(store, namespace, f"{release}-credentials")
    _take(root, stored)
    for shard in shards:
        ensure_identities(CredentialDirectory(root, shard), system_identities())
    _ensure_route_password(root)
    written: list[str] = []
    for name, data in secrets_of(root, shards, release).items():
        if await _read(store, namespace, name) != data:
            await store.apply_object(_secret(namespace, name, data), OWNER)
            written.append(name)
    return written


def secrets_of(root: Path, shards: Sequence[str], release: str) -> dict[str, dict[str, bytes]]:
    """The data of every Secret by its name, as a directory of credentials makes them."""
    files = {_key(root, path): path.read_bytes() for path in _kept(root)}
    found = {f"{release}-credentials": files}
    for shard in shards:
        directory = CredentialDirectory(root, shard)
        ending = "" if shard == subjects.MAIN_SHARD else f"-{shard}"
        for name in (*SERVICES, subjects.ADMINISTRATOR):
            found[f"{release}-{name}{ending}"] = {IDENTITY_KEY: directory.file(name).read_bytes()}
    servers = CredentialDirectory(root, subjects.MAIN_SHARD)
    route = {"route-password": (root / ROUTE_PASSWORD).read_bytes()}
    found[f"{release}-nats-auth"] = {servers.nats_file.name: servers.nats_file.read_bytes(), **route}
    found[f"{release}-redis-acl"] = {servers.redis_file.name: servers.redis_file.read_bytes()}
    return found


def _take(root: Path, stored: Mapping[str, bytes]) -> None:
    """Write what the directory lacks. Raises StartupError for an identity that is another one there."""
    for key, content in sorted(stored.items()):
        path = _path(root, key)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(path, content)
        elif path.name == ROUTE_PASSWORD or _logins(path.read_bytes()) == _logins(content):
            continue
        else:
            raise StartupError(f"credentials: {path} and the Secret's {key} have other passwords; remove the wrong one")


def _logins(content: bytes) -> object:
    """
    Logins that must be equal for the same identity. A file from before Redis knew its role has no login there yet.
    """
    return json.loads(content)["nats"]


def _ensure_route_password(root: Path) -> None:
    """The password by which NATS servers of one cluster know one another."""
    path = root / ROUTE_PASSWORD
    if not path.exists():
        write_private(path, ids.password().encode())


def _kept(root: Path) -> list[Path]:
    """Everything that cannot be made again: identities, and the password of routes."""
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and subjects.NAME.fullmatch(folder.name)]
    return [root / ROUTE_PASSWORD, *(path for folder in (root, *folders) for path in sorted(folder.glob("*.json")))]


def _key(root: Path, path: Path) -> str:
    """`binder.json`, of a further shard `east.binder.json`: a dot is in no name of an identity or shard."""
    return ".".join(path.relative_to(root).parts)


def _path(root: Path, key: str) -> Path:
    parts = key.split(".")
    return root / key if len(parts) <= 2 else root / parts[0] / ".".join(parts[1:])


async def _read(store: SecretStore, namespace: str, name: str) -> dict[str, bytes]:
    """The data of a Secret, {} when it is not there."""
    try:
        found = await store.get_object("v1", "Secret", namespace, name)
    except ApiError as error:
        if error.status != 404:
            raise
        return {}
    return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}


def _secret(namespace: str, name: str, data: Mapping[str, bytes]) -> Json:
    size = sum(map(len, data.values()))
    if size >= SECRET_BYTES_MAX:
        raise StartupError(f"secret {name}: {size} bytes; Kubernetes keeps no more than {SECRET_BYTES_MAX}")
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "credentials"}
    encoded = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta, "data": encoded}
