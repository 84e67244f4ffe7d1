"""What people met in their first hours, each kept as it was mended."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.jobs import submit as jobs_command
from tessera.client.connect.shard_views import one_of
from tessera.client.outcomes import Exit, Failure
from tests.unit.client.job_views import named


@pytest.mark.parametrize("text", ["yesterday", "1.5s", "-5"])
def test_a_time_that_nobody_can_read_is_refused_with_how_it_is_written(text: str) -> None:
    said = CliRunner().invoke(app, ["logs", "train", "--since", text])
    assert said.exit_code == Exit.USAGE
    assert "write 90, 30m, 2h or 1d" in said.output


def test_nobody_gets_a_token_for_a_tenant_that_does_not_exist(tmp_path: Path) -> None:
    asked = ["token", "new", "nobody", "--credentials", str(tmp_path)]
    said = CliRunner().invoke(app, asked, env={"TESSERA_HOME": str(tmp_path)})
    assert said.exit_code == Exit.NOT_FOUND
    assert "tenant nobody: is not known in" in said.output
    assert "`tessera apply` a configuration that names it first" in said.output
    assert not list(tmp_path.glob("*tokens*"))


@pytest.mark.parametrize("beside", [["--operator"], ["lab", "--user", "ana"]])
def test_a_token_for_one_thing_is_a_tenants(tmp_path: Path, beside: list[str]) -> None:
    asked = ["token", "new", *beside, "--only", "places", "--credentials", str(tmp_path)]
    said = CliRunner().invoke(app, asked, env={"TESSERA_HOME": str(tmp_path)})
    assert (said.exit_code, list(tmp_path.glob("*tokens*"))) == (Exit.USAGE, [])
    assert "with --only" in said.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lab", "--only", "health"], "--only health"),
        (["--operator", "--only", "health"], "--only health"),
        (["--only", "health", "--user", "ana"], "--only health"),
        (["--operator", "--source", "rack-agent"], "--only health"),
        (["--only", "health", "--source", "dcgm"], "are Tessera's own"),
        (["--only", "health", "--source", "Rack Agent"], "of a-z, 0-9 and -"),
    ],
)
def test_a_token_for_health_is_an_agents_alone(tmp_path: Path, words: list[str], why: str) -> None:
    said = CliRunner().invoke(app, ["token", "new", *words, "--credentials", str(tmp_path)])
    assert (said.exit_code, list(tmp_path.glob("*tokens*"))) == (Exit.USAGE, []), said.output
    assert why in said.output


def test_a_token_for_health_is_listed_with_its_source(tmp_path: Path) -> None:
    at = ["--credentials", str(tmp_path)]
    assert not CliRunner().invoke(app, ["token", "new", "--only", "health", "--source", "rack-agent", *at]).exit_code
    (listed,) = json.loads(CliRunner().invoke(app, ["token", "list", "-o", "json", *at]).stdout)["items"]
    assert (listed["kind"], listed["only"], listed["source"]) == ("operator", "health", "rack-agent")


def test_the_list_of_tokens_says_what_each_is_for(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{}")
    at = ["--credentials", str(tmp_path)]
    for more in ([], ["--only", "places"]):
        assert not CliRunner().invoke(app, ["token", "new", "lab", *more, *at]).exit_code
    listed = CliRunner().invoke(app, ["token", "list", "-o", "json", *at])
    assert sorted(each["only"] for each in json.loads(listed.stdout)["items"]) == ["", "places"]


def test_what_runs_without_an_image_runs_in_one_that_has_python() -> None:
    assert re.fullmatch(r"python:3\.\d+(-slim)?", jobs_command.DEFAULT_IMAGE)


def test_a_command_for_live_jobs_means_the_live_one_of_those_with_a_name() -> None:
    jobs = [named("a", "succeeded"), named("b", "running"), named("c", "cancelled")]
    assert one_of(jobs, "train", live_only=True).job_id == "b" * 20


def test_of_jobs_that_have_ended_a_command_for_live_ones_says_that_they_have() -> None:
    with pytest.raises(Failure, match="job train: all 2 jobs of this name have ended") as told:
        one_of([named("a", "succeeded"), named("c", "cancelled")], "train", live_only=True)
    assert told.value.code is Exit.CONFLICT


def test_two_live_jobs_of_a_name_are_told_apart_by_their_ids() -> None:
    with pytest.raises(Failure, match=r"2 jobs have this name \(a{20}, b{20}\); give the id of one"):
        one_of([named("a", "queued"), named("b", "running")], "train", live_only=True)


def test_who_reads_about_jobs_of_a_name_that_have_all_ended_means_the_newest() -> None:
    jobs = [named("c", "cancelled", submitted_ts=2), named("a", "failed", submitted_ts=3), named("b", "succeeded")]
    assert one_of(jobs, "train").job_id == "a" * 20


def test_who_reads_about_two_live_jobs_of_a_name_means_the_newest_of_them_even_if_a_newer_one_has_ended() -> None:
    jobs = [named("a", "queued"), named("b", "running", submitted_ts=2), named("c", "failed", submitted_ts=9)]
    assert one_of(jobs, "train").job_id == "b" * 20


def test_the_beginning_of_several_ids_is_never_taken_for_the_newest() -> None:
    with pytest.raises(Failure, match="2 jobs have this name"):
        one_of([named("a", "failed", "one"), named("a", "failed", "two", submitted_ts=2)], "aaaa")
