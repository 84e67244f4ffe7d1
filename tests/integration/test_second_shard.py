"""A second shard comes to servers that run already: by `tessera init`, a reload, and `tessera init` again."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from tessera.kernel.errors import StartupError
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import (
    all_shards,
    ensure_identities,
    reload_nats,
    system_identities,
    tenant_identity,
)
from tessera_local.platform import NATS, Platform, default_nodes
from tessera_schemas import subjects
from tests.e2e.live import tessera


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform(tmp_path / "up", services=[], cluster=False, tenants=["acme"]) as running:
        yield running


async def test_a_second_shard_is_made_beside_one_that_runs_and_whose_connections_stay(platform: Platform) -> None:
    root = platform.credentials.root
    words = ("init", "--shard", "b", "--credentials", str(root), "--ledger-gib", "1")
    environment = {"TESSERA_NATS_URL": platform.nats.url}
    login = platform.credentials.read("scheduler").nats
    client = await nats.connect(
        platform.nats.url, user=login.user, password=login.password, inbox_prefix="_INBOX.scheduler"
    )
    try:
        first = await tessera(*words, environment=environment)
        assert (first.code, "then run `tessera init` again" in first.err) == (5, True)
        await reload_nats(platform.pid(NATS) or 0, platform.nats.monitor_url, platform.clock)
        second = await tessera(*words, environment=environment)
        assert (second.code, second.err) == (0, "")
        assert "made LEDGER_b" in second.out
        assert "main" not in second.out
        third = await tessera(*words, environment=environment)
        assert third.out == "shard b: everything is there already\n"
        assert client.is_connected
        await client.jetstream().publish(subjects.ledger("main"), b"{}")
    finally:
        await client.close()


def test_the_server_files_hold_the_identities_of_every_shard_whichever_was_made_last(tmp_path: Path) -> None:
    main, other = CredentialDirectory(tmp_path, "main"), CredentialDirectory(tmp_path, "b")
    for directory in (main, other):
        ensure_identities(directory, [*system_identities(), tenant_identity("lab")])
    made = main.nats_file.read_text(), main.redis_file.read_text()
    assert not ensure_identities(main, system_identities())
    assert made == (other.nats_file.read_text(), other.redis_file.read_text())
    users = {shard: {credential.nats.user for credential in found} for shard, found in all_shards(tmp_path).items()}
    assert users["b"] == {f"{name}@b" for name in users["main"]}
    assert all(f'"user": "{user}"' in made[0] for found in users.values() for user in found)
    assert "user projection@b " in made[1]
    assert main.read("lab").nats.password != other.read("lab").nats.password


def test_every_shard_has_nodes_of_its_own_unless_a_file_says_otherwise() -> None:
    assert "labels" not in default_nodes(["main"])
    assert "labels: {tessera.io/shard: b}" in default_nodes(["main", "b"])


@pytest.mark.parametrize("shards", [["main", "main"], ["Main"], ["a.b"], ["a@b"], [""], []])
def test_shards_without_a_name_of_their_own_are_refused(shards: list[str], tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="shard"):
        Platform(tmp_path, shards=shards)


def test_a_copy_of_a_shards_identities_is_refused_before_a_server_sees_it(tmp_path: Path) -> None:
    main = CredentialDirectory(tmp_path, "main")
    ensure_identities(main, [tenant_identity("lab")])
    shutil.copytree(tmp_path, tmp_path / "backup")
    with pytest.raises(StartupError, match="backup holds lab, of another shard; move it elsewhere"):
        ensure_identities(main, [tenant_identity("late")])
