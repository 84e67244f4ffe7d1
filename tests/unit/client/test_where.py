"""Which shard a client means: what it says, else what its credentials are of, else the platform's first."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.client.connect.connecting import api_of, cluster_of
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.locating import find
from tessera.client.connect.where import Where
from tessera.client.outcomes import Failure
from tessera.kernel.process.same_process import started_at
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity
from tessera_local.down import down


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


def test_what_a_platform_left_that_was_killed_is_told_from_one_that_runs(tmp_path: Path) -> None:
    file = platform(tmp_path, "main") / "platform.json"
    state = json.loads(file.read_text())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    file.write_text(json.dumps({**state, "platform_pid": gone.pid}))
    with pytest.raises(Failure, match=rf"was killed \(its process {gone.pid} is gone\); start it again: `tessera up`"):
        find(tmp_path, {})
    assert down(tmp_path) == f"no platform runs in {tmp_path}: the last one was killed (pid {gone.pid})"
    file.write_text(json.dumps({**state, "platform_pid": os.getpid(), "platform_started": started_at(os.getpid())}))
    assert find(tmp_path, {}).shard == "main"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says here when a process started")
def test_another_process_with_the_number_of_the_killed_platform_is_not_taken_for_it(tmp_path: Path) -> None:
    file = platform(tmp_path, "main") / "platform.json"
    state = json.loads(file.read_text())
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file.write_text(json.dumps({**state, "platform_pid": other.pid, "platform_started": started_at(other.pid) - 1}))
    with pytest.raises(Failure, match="was killed"):
        find(tmp_path, {})
    assert "was killed" in down(tmp_path)
    assert other.poll() is None, "whoever has the number now is left alone"
    other.communicate(b"\n")


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


def test_a_tenants_credential_reads_by_the_gateway_and_sends_on_nats(as_lab_of: Callable[..., Where]) -> None:
    lab = as_lab_of("main")
    assert lab.login is None
    assert api_of(lab).url == ""  # its token is asked for when it reads
    assert list(lab.tokens) == ["lab"]
    with pytest.raises(Failure, match="the credentials in use are those of lab"):
        lab.identity("operator")


def test_an_address_without_a_token_is_where_a_credential_reads(
    as_lab_of: Callable[..., Where], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_API", "http://127.0.0.1:8480")
    assert (as_lab_of("main").gateway_url, as_lab_of("main").login) == ("http://127.0.0.1:8480", None)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    assert as_lab_of("main").login == ApiLogin("http://127.0.0.1:8480", "tessera_a_b")


def test_a_token_in_clear_off_this_machine_needs_a_word_for_it(
    as_lab_of: Callable[..., Where], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_API", "http://gateway:8480")
    with pytest.raises(Failure, match="unencrypted"):
        as_lab_of("main")
    monkeypatch.setenv("TESSERA_PLAINTEXT_OK", "true")
    assert as_lab_of("main").gateway_url == "http://gateway:8480"


def test_a_service_reads_no_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = CredentialDirectory(tmp_path / "credentials", "main")
    ensure_identities(directory, system_identities())
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(directory.file("scheduler")))
    with pytest.raises(Failure, match="identity scheduler: a service reads no lists"):
        api_of(find())


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


def test_the_cluster_that_the_settings_name_is_called_with_the_token_of_the_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CredentialDirectory(tmp_path / "credentials", "main")
    ensure_identities(directory, system_identities())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(directory.file("operator")))
    monkeypatch.setenv("TESSERA_CLUSTER_URL", "http://127.0.0.1:1")
    where = find()
    assert cluster_of(where).url == "http://127.0.0.1:1"
    assert where.identity("operator").cluster_token == directory.read("operator").cluster_token != ""
