"""Settings: read once, frozen, and every mistake is one line with the field and the way to mend it."""

import json
import re
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError

import tessera
from tessera.__main__ import main
from tessera.kernel.errors import StartupError
from tessera.kernel.process import lifecycle
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.process.unknown_settings import unknown_variables
from tessera.launch import settings_models


class Limits(ServiceSettings):
    """A service with a setting of its own."""

    service: ClassVar[str] = "scheduler"
    batch: int = 256


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("TESSERA_CONFIG_FILE", "TESSERA_SHARD", "TESSERA_NATS_URL", "TESSERA_ALLOW_UNSYNCED"):
        monkeypatch.delenv(variable, raising=False)


def toml(text: str) -> None:
    Path("tessera.toml").write_text(text)


def test_without_any_source_the_defaults_stay_on_the_loopback_and_want_a_synced_server() -> None:
    settings = load_settings(ServiceSettings)
    assert settings.shard == "main"
    assert settings.http_host == "127.0.0.1"
    assert settings.allow_unsynced is False


def test_settings_never_change() -> None:
    with pytest.raises(ValidationError):
        load_settings(ServiceSettings).shard = "other"  # type: ignore[misc]


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('shard = "from-file"\nnats_url = "nats://file:4222"\n')
    monkeypatch.setenv("TESSERA_SHARD", "from-environment")
    settings = load_settings(ServiceSettings)
    assert (settings.shard, settings.nats_url) == ("from-environment", "nats://file:4222")


def test_a_service_reads_its_own_table_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('shard = "a"\n[scheduler]\nbatch = 7\n[binder]\nno_setting_of_the_scheduler = 1\n')
    assert load_settings(Limits).batch == 7
    assert load_settings(Limits).shard == "a"


def test_another_file_may_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("lease_seconds = 5\n")
    monkeypatch.setenv("TESSERA_CONFIG_FILE", str(tmp_path / "mine.toml"))
    assert load_settings(ServiceSettings).lease_seconds == 5


def test_passwords_come_from_the_credential_file_and_are_never_printed(tmp_path: Path) -> None:
    path = tmp_path / "binder.json"
    login = {"user": "binder", "password": "open-sesame"}
    path.write_text(json.dumps({"nats": login, "redis": None, "cluster_token": "t"}))
    settings = load_settings(ServiceSettings, credentials_file=path)
    assert settings.nats_user == "binder"
    assert settings.nats_password.get_secret_value() == "open-sesame"
    assert "open-sesame" not in repr(settings)


MISTAKES = {
    "an unknown field": (
        "nats_ulr = 'nats://x'\n",
        r"setting nats_ulr: there is none \(is nats_url meant\?\).*tessera.toml",
    ),
    "a table of nobody": ("[schedular]\nbatch = 7\n", r"tessera.toml: table \[schedular\].*\(is scheduler meant\?\)"),
    "an unknown field of its table": ("[scheduler]\nbacth = 7\n", r"setting bacth: there is none \(is batch meant\?\)"),
    "a number that is none": ("lease_seconds = 'long'\n", "setting lease_seconds: .*number.*TESSERA_LEASE_SECONDS"),
    "a number out of its range": ("http_port = 70000\n", "setting http_port: .*65535.*TESSERA_HTTP_PORT"),
    "a name that cannot stand in a subject": ("shard = 'Main.*'\n", "setting shard: .*TESSERA_SHARD"),
    "a file that is not TOML": ("shard = \n", "tessera.toml: is not TOML"),
    "a credential file that is not there": ("credentials_file = 'gone.json'\n", "credentials_file: cannot read gone"),
    "two mistakes at once": ("http_port = -1\nlog_level = 'loud'\n", r"\(and 1 more\)$"),
}


@pytest.mark.parametrize(("text", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_the_field_and_the_fix(text: str, line: str) -> None:
    toml(text)
    with pytest.raises(StartupError, match=line) as caught:
        load_settings(Limits)
    assert "\n" not in str(caught.value)


def test_a_password_of_the_wrong_type_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    toml("nats_password = 123456789\n")
    with pytest.raises(StartupError) as caught:
        load_settings(ServiceSettings)
    assert "123456789" not in str(caught.value)


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CONFIG_FILE", "missing.toml")
    with pytest.raises(StartupError, match=r"missing\.toml: cannot be read"):
        load_settings(ServiceSettings)


def test_a_variable_that_is_no_setting_is_told_with_the_nearest_that_is() -> None:
    environment = {"TESSERA_BACTH": "7", "TESSERA_NATS_URL": "nats://x", "TESSERA_HOME": "/x", "HOME": "/y"}
    (line,) = unknown_variables(environment, [Limits])
    assert line == "TESSERA_BACTH: no setting is called so (is TESSERA_BATCH meant?); it has no effect"


def test_what_kubernetes_shows_of_services_is_no_slip_of_the_pen() -> None:
    shown = {"TESSERA_GATEWAY_SERVICE_HOST": "10.0.0.1", "TESSERA_GATEWAY_SERVICE_PORT_API": "8480"}
    shown |= {"TESSERA_GATEWAY_PORT": "tcp://10.0.0.1:8480", "TESSERA_GATEWAY_PORT_8480_TCP_ADDR": "10.0.0.1"}
    assert unknown_variables({**shown, "TESSERA_HTP_PORT": "1"}, [Limits])[0].startswith("TESSERA_HTP_PORT: ")
    assert len(unknown_variables({**shown, "TESSERA_HTP_PORT": "1"}, [Limits])) == 1


def test_no_variable_that_our_own_code_names_is_unknown() -> None:
    code, root = Path(tessera.__file__).parent, Path(__file__).parents[3]
    deployed = [path for path in (root / "deploy").rglob("*") if path.is_file()]
    read = [*code.rglob("*.py"), *deployed, root / "docker-compose.yml", root / "Makefile"]
    texts = [path.read_text(errors="ignore") for path in read]
    named = {name for text in texts for name in re.findall(r"TESSERA_[A-Z_]*[A-Z]\b", text)}
    assert unknown_variables(dict.fromkeys(named, ""), settings_models()) == []


@pytest.mark.parametrize(("words", "shard"), [([], "b"), (["--shard", "c"], "c")])
def test_a_service_serves_the_shard_of_its_settings_unless_one_is_named(
    words: list[str], shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setenv("TESSERA_SHARD", "b")
    monkeypatch.setattr(lifecycle, "run_services", lambda hosted: served.extend(one.settings.shard for one in hosted))
    monkeypatch.setattr(sys, "argv", ["tessera", "run", "scheduler", *words])
    assert main() == 0
    assert served == [shard]
