"""Which shard a client means: what it says, else what its credentials are of, else the platform's first."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.client.outcomes import Failure
from tessera.client.where import Where, find
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity


def platform(home: Path, *shards: str) -> Path:
    urls = dict.fromkeys(("nats_url", "redis_url", "nats_monitor_url"), "")
    state = {"shards": shards, "credentials": str(home / "credentials"), "pids": {}, **urls}
    (home / "platform.json").write_text(json.dumps(state))
    for shard in shards:
        ensure_identities(CredentialDirectory(home / "credentials", shard), [tenant_identity("lab")])
    return home


def test_at_a_platform_the_first_shard_is_meant_unless_one_is_named(tmp_path: Path) -> None:
    home = platform(tmp_path, "main", "b")
    assert find(home, {}).shard == "main"
    assert find(home, {"TESSERA_SHARD": "b"}).shard == "b"
    assert find(home, {"TESSERA_SHARD": "main"}, "b").shard == "b"
    assert find(home, {}, "b").tenant(None).nats.user == "lab@b"


def test_a_shard_that_the_platform_has_not_is_told_with_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"shard c: the platform in .* has main, b; choose one"):
        find(platform(tmp_path, "main", "b"), {}, "c")


@pytest.fixture
def as_lab_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Where]:
    monkeypatch.chdir(tmp_path)

    def found(of: str, wanted: str | None = None) -> Where:
        path = CredentialDirectory(platform(tmp_path, "main", "b") / "credentials", of).file("lab")
        monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(path))
        return find(shard=wanted)

    return found


def test_credentials_say_which_shard_they_are_of(as_lab_of: Callable[..., Where]) -> None:
    assert (as_lab_of("main").shard, as_lab_of("b").shard) == ("main", "b")
    assert as_lab_of("b").tenant(None).identity.name == "lab"


def test_credentials_of_one_shard_are_refused_for_another(as_lab_of: Callable[..., Where]) -> None:
    with pytest.raises(Failure, match="these credentials are of shard b"):
        as_lab_of("b", "main")


def test_the_operator_beside_the_files_that_init_wrote_has_everybodys_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CredentialDirectory(tmp_path / "credentials", "main")
    ensure_identities(directory, [*system_identities(), tenant_identity("lab")])
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(directory.file("operator")))
    where = find()
    assert where.directory is not None
    assert where.directory.path == directory.path
    assert where.identity("operator").nats.user == "operator"
    assert where.identity("lab").nats.user == "lab"
    assert where.can_be("lab")
    assert not where.can_be("sales")

    elsewhere = tmp_path / "alone.json"
    elsewhere.write_text(directory.file("operator").read_text())
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(elsewhere))
    assert find().directory is None
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(directory.file("lab")))
    assert find().directory is None
