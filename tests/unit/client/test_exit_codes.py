"""How commands end: one sentence on stderr and an exit code that scripts depend on."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import command
from tessera.client.connect.shard_views import one_of
from tessera.client.outcomes import Exit, Failure, exit_of
from tessera.client.sending.submitting import exit_of_end
from tessera.kernel.errors import Conflict, InvariantViolation, StartupError, Transient
from tessera_schemas.reasons import Code, PublicReason, Reason
from tessera_schemas.views import JobView
from tests.ledgers import Committed, rechain


def test_the_codes_are_the_documented_ones() -> None:
    names = ["OK", "FAILED", "USAGE", "NOT_FOUND", "CONFLICT", "UNAVAILABLE", "REFUSED", "TIMED_OUT", "CANCELLED"]
    names += ["NOT_RECOMPUTED", "GAVE_UP"]
    assert [(code.name, code.value) for code in Exit] == list(zip(names, range(11), strict=True))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure(Exit.NOT_FOUND, "x"), 3),
        (Conflict("x"), 4),
        (Transient("x"), 5),
        (StartupError("x"), 5),
        (InvariantViolation("x"), 1),
    ],
)
def test_an_error_has_a_code(error: Exception, code: int) -> None:
    assert exit_of(error) == code


def test_the_machines_no_is_told_and_a_mistake_of_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def failing_with(error: Exception) -> Callable[..., None]:
        @command
        def work() -> None:
            raise error

        return work

    with pytest.raises(typer.Exit) as ended:
        failing_with(OSError(errno.ENOSPC, "No space left on device", "/backup/segment.new"))()
    assert ended.value.exit_code == Exit.UNAVAILABLE
    assert "/backup/segment.new: No space left on device" in capsys.readouterr().err
    for mistake in (TimeoutError(), KeyError("x")):
        with pytest.raises(type(mistake)):
            failing_with(mistake)()


@pytest.mark.parametrize(
    ("phase", "reason", "code"),
    [
        ("succeeded", None, 0),
        ("failed", Reason(code=Code.POD_FAILED), 1),
        ("failed", Reason(code=Code.TIME_LIMIT), 7),
        ("failed", PublicReason(code="TimeLimit"), 7),  # as views and events have it
        ("cancelled", Reason(code=Code.CANCELLED), 8),
    ],
)
def test_waiting_ends_as_the_job_ended(phase: str, reason: PublicReason | None, code: int) -> None:
    assert exit_of_end(phase, reason) == code


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ls"], 5, "tessera up"),
        (["get", "x"], 5, "tessera up"),
        (["submit", "--", "true"], 5, "tessera up"),
        (["replay"], 2, "--verify"),
        (["replay", "--verify", "--from-file", "nowhere"], 3, "nowhere"),
        (["apply", "-f", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["ls", "--no-such-option"], 2, ""),
        (["run", "nobody"], 2, "choose one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_that_cannot_work_says_why_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    for name in ("TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    if words:
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


def exported(path: Path, stored: list[bytes]) -> str:
    path.write_bytes(b"".join(line + b"\n" for line in stored))
    return str(path)


def test_a_good_ledger_from_a_file_verifies_with_0_and_a_tampered_one_with_1(tmp_path: Path) -> None:
    ledger = Committed().begin()
    ledger.run_to_its_end("k1")
    good = exported(tmp_path / "good", ledger.stored)
    result = CliRunner().invoke(app, ["replay", "--verify", "--from-file", good, "-o", "json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["recomputed"] == len(ledger.stored)
    at = next(n for n, data in enumerate(ledger.stored, start=1) if b'"allocated"' in data)

    def elsewhere(message: dict) -> None:  # type: ignore[type-arg]
        message["records"][0]["placements"][0]["node"] = "node-b"

    bad = exported(tmp_path / "bad", rechain(ledger.stored, at, elsewhere))
    result = CliRunner().invoke(app, ["replay", "--verify", "--from-file", bad])
    assert result.exit_code == 1
    assert f"message {at}: record 0" in result.stdout
    assert "events         none to compare\n" in result.stdout


def job(job_id: str, name: str, phase: str = "queued") -> JobView:
    return JobView(
        job_id=job_id, tenant="t", queue="q", name=name, key="k", phase=phase, priority=0, attempt=0, pods=1,
        gpu_milli=0, submitted_ts=0,
    )  # fmt: skip


def test_a_job_is_meant_by_the_beginning_of_its_id_or_by_its_name() -> None:
    jobs = [
        job("aaaabbbb", "one"),
        job("aaaacccc", "two"),
        job("ddddeeee", "two", "failed"),
        job("ffff", "three", "failed"),
    ]
    assert one_of(jobs, "aaaab").job_id == "aaaabbbb"
    assert one_of(jobs, "one").job_id == "aaaabbbb"
    assert one_of(jobs, "two").job_id == "aaaacccc"  # the live one
    assert one_of(jobs, "three").job_id == "ffff"
    numbered = [*jobs, job("22222222", "7").model_copy(update={"number": 2222})]
    assert one_of(numbered, "2222").number == 2222


@pytest.mark.parametrize(("named", "code"), [("aaaa", 2), ("aaa", 3), ("zzzz", 3), ("", 3)])
def test_a_name_that_means_several_jobs_or_none_is_an_error(named: str, code: int) -> None:
    with pytest.raises(Failure) as failed:
        one_of([job("aaaabbbb", "one"), job("aaaacccc", "two")], named)
    assert failed.value.code == code
