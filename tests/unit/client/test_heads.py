"""Exports tell by themselves that they were cut, and heads that were kept elsewhere tell who kept them."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands import context
from tessera.client.commands.ledger_care import ledger as commands
from tessera.client.ledger.chain import ChainWalk
from tessera.client.ledger.witnesses import Known
from tessera.client.outcomes import Exit
from tessera.kernel.ports import Message
from tests.builders import SHARD
from tests.contract.golden_files import FOLDER
from tests.ledgers import Committed, rechain

signs = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's client is not installed")


@dataclass(frozen=True)
class InMemory:
    """A shard's ledger as the commands read it."""

    stored: list[bytes]
    shard: str = SHARD

    async def walk(self) -> ChainWalk:
        return ChainWalk()

    @property
    def ledger(self) -> "InMemory":
        """The stream below: here the same."""
        return self

    async def tail(self) -> Message:
        return Message("", len(self.stored), self.stored[-1])

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        for seq, data in enumerate(self.stored, start=1):
            yield seq, data


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A ledger that the commands read, in memory."""
    made = Committed().begin()
    made.run_to_its_end("k1", gpus=2)

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[InMemory]:
        yield InMemory(made.stored)

    async def nothing(*_: Any) -> Known:
        return Known()

    monkeypatch.setattr(commands, "stored_ledger", opened)
    monkeypatch.setattr(commands, "newest_known", nothing)
    monkeypatch.setattr(context, "find", lambda *_, **__: None)
    return made.stored


def ran(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.fixture
def export(stored: list[bytes], tmp_path: Path) -> Path:
    file = tmp_path / "ledger.jsonl"
    assert ran("ledger", "inspect", "--last", "0", "--export", str(file))[0] == Exit.OK
    return file


def verified(file: Path, *lines: bytes) -> tuple[int, str]:
    if lines:
        file.write_bytes(b"".join(line + b"\n" for line in lines))
    return ran("replay", "--verify", "--from-file", str(file))


def test_an_export_is_whole_with_the_head_that_its_messages_lead_to(stored: list[bytes], export: Path) -> None:
    first, *messages, last = export.read_bytes().splitlines()
    assert messages == stored
    assert (first, last[:9]) == (b'{"export":{"shard":"main"}}', b'{"head":"')
    code, said = verified(export)
    assert (code, "note" in said) == (Exit.OK, False)


def test_an_export_that_was_cut_is_told_without_an_anchor_wherever_it_was_cut(export: Path) -> None:
    lines = export.read_bytes().splitlines()
    for kept, words in (
        (lines[:-1], "without the line that names its head: it was cut"),
        (lines[:-3], f"ends after message {len(lines) - 4}, without the line"),
        ([*lines[:-3], lines[-1]], f"its messages end at {len(lines) - 4}"),
        ([*lines[:-1], lines[-1][:40]], "the export's last line is"),
    ):
        code, said = verified(export, *kept)
        assert (code, words in " ".join(said.split())) == (Exit.FAILED, True), said


def test_an_export_of_0_3_is_taken_with_a_note_that_nobody_can_tell_whether_it_was_cut() -> None:
    code, said = verified(FOLDER / "ledgers" / "0.3-demo.jsonl")
    assert code == Exit.NOT_RECOMPUTED
    assert "no last line with its head" in said


def test_an_export_of_which_an_input_was_changed_does_not_lead_to_its_head(stored: list[bytes], export: Path) -> None:
    first, *_, last = export.read_bytes().splitlines()
    other = rechain(stored, 1, lambda message: message.update(holder="scheduler-9"))
    code, said = verified(export, first, *other, last)
    assert (code, "the export's last line is" in said) == (Exit.FAILED, True), said


@pytest.fixture
def key(tmp_path: Path) -> Path:
    made = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made)], check=True)
    return made


@signs
def test_a_signed_head_is_an_anchor_for_whoever_has_the_public_key(export: Path, key: Path, tmp_path: Path) -> None:
    code, signed = ran("ledger", "head", "--sign", str(key))
    kept, words = (
        tmp_path / "head",
        ("replay", "--verify", "--from-file", str(export), "--anchor", str(tmp_path / "head")),
    )
    kept.write_text(signed)
    assert code == Exit.OK
    code, said = ran(*words, "--public-key", f"{key}.pub")
    assert (code, "the ledger holds the head that was kept" in said) == (Exit.OK, True)
    assert ran(*words)[0] == Exit.OK  # without the key nobody asks who signed it


@signs
def test_a_head_that_somebody_else_signed_or_nobody_is_no_anchor(export: Path, key: Path, tmp_path: Path) -> None:
    _, signed = ran("ledger", "head", "--sign", str(key))
    first, _, signature = signed.partition("\n")
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    kept, words = (
        tmp_path / "head",
        ["replay", "--verify", "--from-file", str(export), "--anchor", str(tmp_path / "head")],
    )
    n, _, chain = first.partition(":")
    for text, public in (
        (signed, other),
        (f"{n}:{'0' * 64}\n{signature}", key),
        (f"{int(n) - 1}:{chain}\n{signature}", key),
        (f"{first}\n", key),
    ):
        kept.write_text(text)
        code, said = ran(*words, "--public-key", f"{public}.pub")
        assert (code, "--anchor" in said) == (Exit.FAILED, True), said


@signs
def test_a_key_that_is_none_is_told(stored: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    code, said = ran("ledger", "head", "--sign", str(tmp_path / "text"))
    assert (code, "name a private key" in " ".join(said.split())) == (Exit.USAGE, True), said
