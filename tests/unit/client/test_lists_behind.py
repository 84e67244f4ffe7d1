"""What a command says while the shard does not decide, or its lists lack what was sent."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tessera.client.commands.context import AccessOptions, ShardOptions, command
from tessera.client.commands.jobs.submit import show_submitted
from tessera.client.connect import shard_status
from tessera.client.outcomes import Exit, Failure, Submitted
from tessera.client.views.rendering import Output


def look_for_a_job(
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    code: Exit = Exit.NOT_FOUND,
    options: type[ShardOptions] = AccessOptions,
) -> Any:
    """A command that finds no job, where the lists lack so much."""

    async def lacks(*_: Any) -> str:
        return why

    def look(at: Any) -> None:
        raise Failure(code, f"job train: there is none with this id or name in {at.shard}")

    look.__annotations__["at"] = options
    monkeypatch.setattr(shard_status, "why_views_lack", lacks)
    monkeypatch.setattr(ShardOptions, "find", lambda _: None)
    app = typer.Typer()
    app.command()(command(look))
    return CliRunner().invoke(app, ["--shard", "main"])


def test_a_job_that_lists_may_lack_is_not_said_to_be_none_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    said = look_for_a_job(monkeypatch, "the lists hold up to record 32 of 48")
    assert said.exit_code == Exit.NOT_FOUND
    assert said.stderr.splitlines()[1] == (
        "note: it may be there all the same: the lists hold up to record 32 of 48; see `tessera status`"
    )


def test_lists_that_hold_all_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(look_for_a_job(monkeypatch, "").stderr.splitlines()) == 1
    assert len(look_for_a_job(monkeypatch, "no scheduler leads", Exit.CONFLICT).stderr.splitlines()) == 1


def test_what_is_read_where_it_is_is_not_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(look_for_a_job(monkeypatch, "no scheduler leads", options=ShardOptions).stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("queued", "job j admitted\n"),
        ("existing", "job j admitted\n"),
        ("admitted", "job j stored; admission takes it in, no word of the ledger has come yet, see `tessera status`\n"),
        ("stored", "job j stored; admission has not answered yet, see `tessera status`\n"),
    ],
)
def test_admitted_is_said_of_what_the_ledger_has_alone(
    state: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_submitted(Submitted("j", state != "stored", "key", state=state), Output.parse("table"))
    assert capsys.readouterr().out == said
    show_submitted(Submitted("j", state != "stored", "key", state=state), Output.parse("jsonpath={.state}"))
    assert capsys.readouterr().out == f"{state}\n"
