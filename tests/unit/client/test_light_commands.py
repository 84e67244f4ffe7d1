"""What a command imports: CPU time that everybody pays with every call."""

import asyncio
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client import Failure, Submitted, submit
from tessera.client.cli import COMMANDS, ImportedWhenCalled, app
from tessera.client.commands.jobs.submit import report_end
from tessera.client.sending.submitting import Sent
from tests.unit.client.small_gateway import Gateway, job

HEAVY = {
    "aiohttp.client",
    "rich.console",
    "numpy",
    "kubernetes",
    "nats",
    "tessera.domain.state",
    "tessera.engine",
    "structlog.dev",
    "importlib.metadata._adapters",
    "opentelemetry",
}


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command, with the names of all modules that it has imported as its last line."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        f"sys.argv = ['tessera', *{words!r}]\n"
        "from tessera.client.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, env={**os.environ, **variables}
    )


def imported_by(folder: Path, *words: str) -> set[str]:
    ended = run(folder, *words)
    assert "start it with `tessera up`" in ended.stderr
    return set(ended.stdout.split())


FOR_SUBMITS = {"yaml", "tessera_schemas.job", "tessera_schemas.events", "tessera_schemas.work.short_form"}
READING = {"ls", "get", "nodes"}
"""Commands that only read, and what they have no use for: YAML, and what a job or an event may say."""


@pytest.mark.parametrize(
    "words", [("ls",), ("get", "train"), ("nodes",), ("squeue",), ("submit", "--gpus", "1", "--", "true")], ids=" ".join
)
def test_a_frequent_command_imports_no_library_that_it_has_no_use_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert imported_by(tmp_path, *words) & (HEAVY | FOR_SUBMITS if words[0] in READING else HEAVY) == set()


def test_a_list_by_token_reads_expected_starts_without_the_contract_of_submits(tmp_path: Path) -> None:
    waits = job("train", "queued")
    start = {"at_ts": 4_920_000, "rests_on": ["time_limits"], "words": "in 1h22m, by the time limits of runs"}
    gateway = Gateway()
    gateway.answers["/v1/jobs"] = 200, {"as_of": 7, "items": [waits], "count": 1}
    gateway.answers["/v1/line"] = 200, {"as_of": 7, "items": [{"job_id": waits["job_id"], "expected_start": start}]}
    ended = run(tmp_path, "ls", TESSERA_API=gateway.url, TESSERA_TOKEN="tessera_a_b")
    gateway.close()
    *shown, modules = ended.stdout.splitlines()
    assert "in 1h22m" in shown[1]
    assert set(modules.split()) & {*HEAVY, *FOR_SUBMITS, "tessera.gateway.operations.models"} == set()


def test_the_import_of_the_sdk_loads_no_library_before_it_is_used() -> None:
    names = "Failure, Refused, StartupError, SyncTessera, Tessera, Transient, submit"
    script = f"import sys\nfrom tessera.client import {names}\nprint(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "tessera.client.sending.sdk" in loaded
    assert loaded & {*HEAVY, "aiohttp", "pydantic", "redis", "rich", "structlog", "typer", "yaml"} == set()


def test_every_command_of_the_table_is_there_under_its_name() -> None:
    commands = ImportedWhenCalled()
    assert {name: commands[name].name for name in COMMANDS} == {name: name for name in COMMANDS}
    assert all(commands[name].help for name in COMMANDS)


def test_help_imports_no_command_and_no_library_but_its_own(tmp_path: Path) -> None:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "sys.argv = ['tessera', '-h']\n"
        "from tessera.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0
    assert all(f"  {name} " in ended.stdout for name in COMMANDS)
    assert max(map(len, ended.stdout.splitlines())) <= 80
    loaded = set(ended.stderr.split())
    assert loaded & {"pydantic", "rich", "asyncio", "structlog", "tessera_schemas", "email.message"} == set()
    assert {name for name in loaded if name.startswith("tessera.client.commands")} == set()


def test_the_version_is_that_of_the_package() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"tessera {version('tessera-scheduler')}\n")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tessera", "context", "list"]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # as `| head` does
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_ctrl_c_while_waiting_says_that_the_job_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def wait(_: float | None) -> None:
        raise asyncio.CancelledError

    sent = Sent(Submitted("a" * 20, "k", True), wait)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_end(sent, None))
    assert f"job {'a' * 20} goes on; `tessera get" in capsys.readouterr().err


def test_a_submit_in_a_running_loop_gets_as_far_as_one_without(tmp_path: Path) -> None:
    async def in_a_notebook() -> None:
        submit({"name": "it", "roles": []}, home=tmp_path)

    with pytest.raises(Failure, match="nothing runs in"):
        asyncio.run(in_a_notebook())
