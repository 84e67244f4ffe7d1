"""Files that cannot be read, or hold something else: one sentence that names the file, at every command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.connect import contexts
from tessera.client.connect.locating import find
from tessera.client.input import files
from tessera.client.ledger.backup import Backup
from tessera.client.outcomes import Failure
from tessera.gateway.entrance.tokens import read_entries
from tessera.kernel.errors import StartupError
from tessera.kernel.process.settings import load_settings
from tessera.kernel.provisioning.credential_files import read_credential
from tessera.reclamation.settings import ReclamationSettings
from tessera_lab.traces.alibaba import MODELS_MAX
from tessera_local.cluster.api.access import access_from_file
from tessera_local.cluster.machines.nodes import nodes_from_file
from tessera_local.down import down

NODES, PODS = "cpu_milli,memory_mib,gpu,model\n", "cpu_milli,memory_mib,num_gpu,gpu_milli\n"
JOBS = "submit_s,duration_s,num_gpus,vc\n"
ONE_NODE, ONE_POD, ONE_JOB = "64000,1000,8,A\n", "1000,10,1,1000\n", "0,10,1,a\n"
BOM = "\ufeff"
BAD = ("directory", "latin", "zeros", "deep")

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "apply": lambda file: ["apply", "-f", file],
    "sbatch": lambda file: ["sbatch", file],
    "replay": lambda file: ["replay", "--verify", "--from-file", file],
    "lab queue": lambda file: ["lab", "queue", file],
    "lab pack": lambda file: ["lab", "pack", "mine", "--nodes", file, "--pods", file],
    "lab pack --live": lambda file: ["lab", "pack", "mine", "--live", "--nodes", file, "--pods", file],
    "lab churn": lambda file: ["lab", "churn", "mine", "--nodes", file, "--pods", file],
}


@pytest.fixture
def bad(tmp_path: Path) -> dict[str, Path]:
    """Files that nobody can use, by what is wrong with them."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "latin").write_bytes("größe: 3\n".encode("latin-1"))
    (tmp_path / "zeros").write_bytes(b"\x00" * 64)
    (tmp_path / "deep").write_text("[" * 100_000)
    return {name: tmp_path / name for name in ("missing", *BAD)}


@pytest.mark.parametrize("wrong", ["missing", "directory", "latin", "zeros"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_used_is_told_in_a_sentence_that_names_it(
    command: str, wrong: str, bad: dict[str, Path]
) -> None:
    ended = CliRunner().invoke(app, COMMANDS[command](str(bad[wrong])))
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code in (1, 2, 3, 5)
    assert "Traceback" not in ended.output
    if command != "replay" or wrong in ("missing", "directory"):  # its findings name messages
        assert str(bad[wrong]) in " ".join(ended.output.split())


@pytest.mark.parametrize("wrong", ["missing", *BAD])
def test_files_of_operators_are_no_worse(wrong: str, bad: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CONFIG_FILE", str(bad[wrong]))
    for read in (nodes_from_file, access_from_file, read_entries, read_credential):
        with pytest.raises(StartupError, match=wrong):
            read(bad[wrong])
    with pytest.raises(StartupError, match=wrong):
        load_settings(ReclamationSettings)
    with pytest.raises(Failure, match=wrong):
        files.read_yaml(bad[wrong])


@pytest.mark.parametrize(
    "arguments",
    [
        lambda d: ["lab", "queue", d("jobs", JOBS)],
        lambda d: ["lab", "pack", "mine", "--nodes", d("nodes", NODES), "--pods", d("pods", PODS + ONE_POD)],
        lambda d: ["lab", "pack", "mine", "--nodes", d("nodes", NODES + ONE_NODE), "--pods", d("pods", PODS)],
        lambda d: ["lab", "churn", "mine", "--nodes", d("nodes", NODES), "--pods", d("pods", PODS)],
        lambda d: ["lab", "queue", d("empty", "")],
    ],
    ids=["jobs", "nodes", "pods", "churn", "empty"],
)
def test_a_table_without_a_row_is_told_with_its_file(arguments: Callable[..., list[str]], tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, arguments(_written(tmp_path)))
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code == 5
    assert str(tmp_path) in ended.output


def test_more_models_than_a_number_has_bits_are_refused_and_as_many_as_it_has_are_not(tmp_path: Path) -> None:
    written = _written(tmp_path)
    pods = written("pods", PODS + ONE_POD)

    def ended(models: int, *more: str) -> tuple[int, str]:
        nodes = written("nodes", NODES + "".join(f"64000,1000,8,m{at}\n" for at in range(models)))
        known = ["lab", "pack", "mine", "--nodes", nodes, "--pods", pods, "--seeds", "1", *more]
        result = CliRunner().invoke(app, known)
        return result.exit_code, result.output

    assert ended(MODELS_MAX, "--policy", "bestfit")[0] == 0
    code, said = ended(MODELS_MAX + 1)
    assert (code, f"{MODELS_MAX + 1} GPU models" in said) == (5, True)


def test_a_byte_order_mark_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = _written(tmp_path)
    assert files.read_yaml(Path(written("yaml", BOM + "a: 1\n"))) == {"a": 1}
    assert files.read_text(Path(written("script", BOM + "#!/bin/sh\n"))) == "#!/bin/sh\n"
    ended = CliRunner().invoke(app, ["lab", "queue", written("jobs.csv", BOM + JOBS + ONE_JOB), "--policy", "fifo"])
    assert ended.exit_code == 0, ended.output
    trace = BOM + "sn,cpu_milli,memory_mib,gpu,model\nnode-a,64000,1000,8,A\n"
    assert [node["metadata"]["name"] for node in nodes_from_file(Path(written("nodes.csv", trace)))] == ["node-a"]
    monkeypatch.setenv("TESSERA_CONFIG_FILE", written("tessera.toml", BOM + "[reclamation]\nheads = 7\n"))
    assert load_settings(ReclamationSettings).heads == 7


@pytest.mark.parametrize("wrong", BAD)
def test_files_of_a_user_are_no_worse(wrong: str, bad: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = bad["missing"] / "tessera" / "contexts.json"
    kept.parent.mkdir(parents=True)
    bad[wrong].rename(kept)
    with pytest.raises(Failure, match=str(kept)):
        contexts.Contexts.read({"XDG_CONFIG_HOME": str(bad["missing"])})
    (bad["missing"] / "platform.json").symlink_to(kept)
    with pytest.raises(Failure, match="platform"):
        find(bad["missing"])
    assert down(bad["missing"]) == f"no platform runs in {bad['missing']}"
    (bad["missing"] / "manifest.json").symlink_to(kept)
    with pytest.raises(Failure, match="damaged"):
        Backup.read(bad["missing"])
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(kept))
    with pytest.raises(StartupError, match=str(kept)):
        load_settings(ReclamationSettings).logins()


@pytest.mark.parametrize(
    "arguments",
    [
        lambda file: ["up", "--home", file],
        lambda file: ["init", "--only-identities", "--credentials", f"{file}/below"],
        lambda file: ["cluster", "sync-secrets", "--credentials", file],
        lambda file: ["token", "list", "--credentials", file],
        lambda file: ["ledger", "restore", file],
    ],
    ids=["up", "init", "sync-secrets", "token", "restore"],
)
def test_a_file_where_a_directory_is_wanted_is_told(arguments: Callable[[str], list[str]], tmp_path: Path) -> None:
    file = _written(tmp_path)("file", "")
    ended = CliRunner().invoke(app, arguments(file))
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code in (2, 5)
    assert file in ended.output


def test_settings_of_a_service_that_are_no_table_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CONFIG_FILE", _written(tmp_path)("tessera.toml", "reclamation = 3\n"))
    with pytest.raises(StartupError, match="reclamation is not a table"):
        load_settings(ReclamationSettings)


def test_what_is_no_mapping_is_told(tmp_path: Path) -> None:
    for text in ("", "- 1\n", "a: [\n", "{" * 5000):
        with pytest.raises(Failure, match="file"):
            files.read_yaml(Path(_written(tmp_path)("file", text)))


def _written(directory: Path) -> Callable[[str, str], str]:
    def write(name: str, text: str) -> str:
        (directory / name).write_text(text, encoding="utf-8")
        return str(directory / name)

    return write
