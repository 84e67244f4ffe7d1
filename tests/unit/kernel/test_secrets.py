"""Identities in a Kubernetes namespace: made once, kept by upgrades, and the same on an operator's machine."""

import base64
import json
from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera.kernel.ports import ApiError
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity
from tessera.kernel.provisioning.secrets import synchronise
from tessera_schemas.base import Json
from tessera_schemas.shard.services import SERVICES

MAIN = ["main"]


class Namespace:
    """The Secrets of one namespace, as the API server keeps them."""

    def __init__(self) -> None:
        self.secrets: dict[str, Json] = {}

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        assert (api_version, kind, namespace) == ("v1", "Secret", "system")
        if name not in self.secrets:
            raise ApiError(404, "NotFound", name)
        return self.secrets[name]

    async def apply_object(self, wanted: Json, owner: str) -> None:
        self.secrets[wanted["metadata"]["name"]] = wanted

    def data(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.secrets[name]["data"].items()}


async def sync(root: Path, there: Namespace, shards: list[str] = MAIN) -> list[str]:
    root.mkdir(exist_ok=True)
    return await synchronise(root, shards, there, "system", "rel")


async def test_an_empty_namespace_gets_a_secret_for_each_service_and_both_servers(tmp_path: Path) -> None:
    there = Namespace()
    written = await sync(tmp_path, there)
    assert set(written) == {
        f"rel-{name}" for name in (*SERVICES, "administrator", "credentials", "nats-auth", "redis-acl")
    }
    identity = json.loads(there.data("rel-binder")["identity.json"])
    assert identity["identity"]["role"] == "binder"
    assert identity["nats"]["password"].encode() in there.data("rel-nats-auth")["nats-auth.conf"]
    assert there.data("rel-nats-auth")["route-password"]
    assert b"user projection" in there.data("rel-redis-acl")["redis-users.acl"]


async def test_an_upgrade_with_an_empty_directory_keeps_every_password_and_writes_nothing(tmp_path: Path) -> None:
    there = Namespace()
    await sync(tmp_path / "first", there)
    before = {name: there.data(name) for name in there.secrets}
    assert await sync(tmp_path / "second", there) == []
    assert {name: there.data(name) for name in there.secrets} == before


async def test_a_tenant_that_was_added_on_an_operators_machine_comes_into_the_cluster_and_stays(tmp_path: Path) -> None:
    there = Namespace()
    await sync(tmp_path / "job", there)
    await sync(tmp_path / "laptop", there)
    ensure_identities(CredentialDirectory(tmp_path / "laptop", "main"), [tenant_identity("demo", ("build",))])
    assert sorted(await sync(tmp_path / "laptop", there)) == ["rel-credentials", "rel-nats-auth"]
    assert b"TENANT_demo" in there.data("rel-nats-auth")["nats-auth.conf"]
    assert await sync(tmp_path / "upgrade", there) == []
    assert (tmp_path / "upgrade" / "demo.json").read_text() == (tmp_path / "laptop" / "demo.json").read_text()


async def test_a_second_shard_gets_identities_of_its_own_and_leaves_the_firsts_as_they_are(tmp_path: Path) -> None:
    there = Namespace()
    await sync(tmp_path / "one", there)
    before = there.data("rel-binder")
    await sync(tmp_path / "two", there, ["main", "east"])
    assert there.data("rel-binder") == before
    assert b'"binder@east"' in there.data("rel-binder-east")["identity.json"]
    assert "east.binder.json" in there.data("rel-credentials")
    await sync(tmp_path / "three", there, ["main", "east"])
    assert (tmp_path / "three" / "east" / "binder.json").exists()


async def test_a_directory_of_another_installation_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    there = Namespace()
    await sync(tmp_path / "ours", there)
    before = {name: there.data(name) for name in there.secrets}
    await sync(tmp_path / "theirs", Namespace())
    with pytest.raises(StartupError, match=r"administrator\.json have other passwords"):
        await sync(tmp_path / "theirs", there)
    assert {name: there.data(name) for name in there.secrets} == before


def test_a_service_that_has_got_business_in_kubernetes_gets_a_token_and_keeps_its_passwords(tmp_path: Path) -> None:
    directory = CredentialDirectory(tmp_path, "main")
    ensure_identities(directory, system_identities())
    before = directory.read("gateway")
    stored = json.loads(directory.file("gateway").read_text())
    directory.file("gateway").write_text(json.dumps({**stored, "cluster_token": ""}))  # as 0.3 made it
    assert ensure_identities(directory, system_identities())
    after = directory.read("gateway")
    assert after.cluster_token
    assert (after.nats, after.redis) == (before.nats, before.redis)
