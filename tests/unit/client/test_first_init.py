"""`tessera init` for the first time: the operator's file that the environment names already is made by it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera_local.free_port import free_port


def test_the_first_pass_writes_the_files_although_the_environment_names_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "credentials"
    monkeypatch.setenv("TESSERA_CREDENTIALS_FILE", str(folder / "operator.json"))
    monkeypatch.setenv("TESSERA_NATS_URL", f"nats://127.0.0.1:{free_port()}")
    said = CliRunner().invoke(app, ["init", "--credentials", str(folder)])
    assert (folder / "operator.json").exists(), said.output
    assert (folder / "nats-auth.conf").exists()
    assert said.exit_code == 5  # nobody listens there yet
