"""Values that no job should hold, which callers of the SDK hand over by mistake, are refused as any wrong one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tessera.client import Refused
from tessera.client.cli import app
from tessera.client.cluster.applying import read_body
from tessera.client.sending.job_input import full_spec, read_submit
from tessera.client.sending.sdk import Tessera

JOB: Mapping[str, Any] = {"name": "a", "queue": "default", "gpus": 1, "cpu": 1, "memory": "1Gi", "image": "x"}


def refusals(job: Any) -> list[str]:
    with pytest.raises(Refused) as raised:
        read_submit({"kind": "submit_job", "spec": full_spec(job)}, "key", lambda _: None)
    return [f"{reason.code} {reason.field}" for reason in raised.value.reasons]


def test_all_amounts_that_are_none_are_refused_at_once() -> None:
    wrong = refusals({**JOB, "cpu": "x", "memory": "lots"})
    assert wrong == ["InvalidField resources.cpu", "InvalidField resources.memory"]


def test_a_number_of_more_than_64_bits_is_refused_by_its_field() -> None:
    assert refusals({**JOB, "memory": "99999999999Ti"}) == ["InvalidField roles[0].resources.memory_bytes"]
    assert refusals({**JOB, "begin_ts": 2**64}) == ["InvalidField begin_ts"]


@pytest.mark.parametrize("odd", [b"x", object(), {1, 2}, Path("x")], ids=lambda odd: type(odd).__name__)
def test_a_value_that_json_does_not_have_is_refused(odd: object) -> None:
    assert refusals({**JOB, "name": odd}) == ["NotJson "]


def test_a_mapping_that_holds_itself_is_refused() -> None:
    env: dict[str, Any] = {}
    env["env"] = env
    assert refusals({**JOB, "template": {"image": "x", "env": env}}) == ["NotJson "]


@pytest.mark.parametrize("odd", [[], None, "train", 3], ids=str)
def test_what_is_no_mapping_is_no_job(odd: object) -> None:
    assert refusals(odd) == ["NotJson "]


def test_a_file_with_a_number_of_more_than_64_bits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**JOB, "time_limit_seconds": 2**64}))
    environment = {"TESSERA_API": "http://127.0.0.1:1", "TESSERA_TOKEN": "token"}
    said = CliRunner().invoke(app, ["submit", "-f", str(file)], env=environment)
    assert (said.exit_code, "InvalidField: time_limit_seconds" in said.output) == (6, True), said.output


def test_a_dry_run_by_token_refuses_what_is_not_well_written() -> None:
    environment = {"TESSERA_API": "http://127.0.0.1:1", "TESSERA_TOKEN": "token"}
    words = ["sbatch", "--test-only", "--container-image=x", "--wrap=true"]
    wrong = CliRunner().invoke(app, [*words, "--export=1X=2"], env=environment)
    assert (wrong.exit_code, "template.env.1X" in wrong.output) == (6, True), wrong.output
    well = CliRunner().invoke(app, words, env=environment)
    assert (well.exit_code, "it is well written, and whether it would be admitted is not known" in well.output) == (
        5,
        True,
    ), well.output


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["--time=soon"], ["--time=soon"], 2),
        (["--time=soon", "--dependency=afterok:12"], ["--time=soon"], 2),
        (["--time=soon", "--export=1X=2"], ["--time=soon", "template.env.1X"], 6),
        (["--export=1X=2"], ["template.env.1X"], 6),
        (["--exclusive", "--gpus=1", "--time=soon"], ["--time=soon"], 2),
        ([], ["nothing runs in"], 5),
        (["--dependency=afterok:12"], ["nothing runs in"], 5),
    ],
)
@pytest.mark.parametrize("only", [["--test-only"], []], ids=["judged", "submitted"])
def test_what_is_wrong_with_a_script_is_told_where_no_platform_answers(
    tmp_path: Path, words: list[str], told: list[str], code: int, only: list[str]
) -> None:
    said = CliRunner().invoke(
        app, ["sbatch", "--home", str(tmp_path / "none"), *only, "--container-image=x", *words, "--wrap=true"]
    )
    assert said.exit_code == code, said.output
    assert [each for each in told if each not in said.output] == [], said.output


@pytest.mark.parametrize("by_pipe", [True, False])
def test_a_script_with_line_breaks_of_windows_is_refused_however_it_comes(tmp_path: Path, by_pipe: bool) -> None:
    text, file = b"#!/bin/bash\r\n#SBATCH --gpus=1\r\ntrue\r\n", tmp_path / "crlf.sh"
    file.write_bytes(text)
    environment = {"TESSERA_API": "http://127.0.0.1:1", "TESSERA_TOKEN": "token"}
    words = ["sbatch", "--test-only", "--container-image=x", *([] if by_pipe else [str(file)])]
    said = CliRunner().invoke(app, words, env=environment, input=text if by_pipe else None)
    assert (said.exit_code, "DOS line breaks" in said.output) == (2, True), said.output


def test_a_dry_run_asks_under_the_key_that_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    async def judge(self: Tessera, command: object, key: str) -> str:
        asked.append(key)
        return "job"

    monkeypatch.setattr(Tessera, "judge", judge)
    environment = {"TESSERA_API": "http://127.0.0.1:1", "TESSERA_TOKEN": "token"}
    said = CliRunner().invoke(app, ["submit", "--dry-run", "--", "true"], env=environment)
    assert said.exit_code == 0, said.output
    assert [json.loads(said.stdout)["key"]] == asked


def test_a_configuration_with_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(Refused, match="weight"):
        read_body({"queues": [{"name": "default", "weight": 2**64}]})
