"""Dead letters on an operator's screen: within 80 columns, in one piece, and harmless whatever the sender wrote."""

from datetime import UTC, datetime

import pytest
from nats.js.api import RawStreamMsg
from rich.cells import cell_len

from tessera.client.cluster.dead_letters import Letter
from tessera.client.commands.ledger_care.dlq import letter_columns, letter_lines
from tessera.client.views.rendering import COLUMNS, table

STORED = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
NOW = round(STORED.timestamp() * 1000) + 90_000


def letter(data: bytes = b"{}", subject: str = "dlq.main.admission.SUBMIT_main.41", **headers: str) -> Letter:
    named = {f"Tessera-{name.replace('_', '-')}": value for name, value in headers.items()}
    return Letter.of(RawStreamMsg(subject=subject, seq=7, data=data, headers=named, time=STORED))


def test_a_letter_says_whose_it_was_and_why_it_died() -> None:
    read = letter(
        Subject="submit.main.lab", Reason="Poison: not JSON", Deliveries="5", Msg_Id="k1", Reply="_INBOX.lab.1"
    )
    assert (read.seq, read.service, read.source, read.source_seq) == (7, "admission", "SUBMIT_main", 41)
    assert (read.subject, read.reason, read.deliveries) == ("submit.main.lab", "Poison: not JSON", 5)
    assert (read.message_id, read.headers) == ("k1", {"Tessera-Reply": "_INBOX.lab.1"})
    assert table(letter_columns(NOW), [read])[1].split() == [
        "7", "1m30s", "admission", "submit.main.lab", "Poison:", "not", "JSON"
    ]  # fmt: skip


@pytest.mark.parametrize("long", ["x" * 5_000, "宽" * 500, "two\nlines\x1b[2J" * 99])
def test_a_row_is_one_line_of_at_most_80_columns_whatever_it_holds(long: str) -> None:
    lines = table(letter_columns(NOW), [letter(Subject=long, Reason=long)])
    assert len(lines) == 2
    assert max(map(cell_len, lines)) <= COLUMNS
    assert all(line.isprintable() for line in lines)


def test_a_letter_without_any_of_its_marks_is_listed_all_the_same() -> None:
    read = Letter.of(RawStreamMsg(subject="dlq.main", seq=1))
    assert (read.service, read.subject, read.reason, read.deliveries, read.data) == ("", "-", "-", 0, b"")
    assert letter(Deliveries="many", Cut_From="9" * 5_000).deliveries == 0


def test_nothing_that_a_sender_wrote_steers_the_operators_terminal() -> None:
    body = b"line one\nline two \x1b]0;owned\x07 \xff\x00 \xe2\x80\xae"
    shown = "line one\nline two \\u001b]0;owned\\u0007 \\xff\\u0000 \\u202e"
    assert letter_lines(letter(body), NOW)[-1] == shown
    told = "\n".join(letter_lines(letter(body, Reply="\x1b[31m", Reason="a\x9bb"), NOW))
    assert all(character.isprintable() or character == "\n" for character in told)


def test_a_letter_that_was_cut_says_how_long_it_was() -> None:
    lines = letter_lines(letter(b"x" * 10, Cut_From="1000000"), NOW)
    assert "1000000, of which the first 10 are here" in "\n".join(lines)
    assert lines[-1] == "x" * 10


def test_a_body_is_text_for_a_program_where_it_is_text() -> None:
    assert letter("grün".encode()).body() == {"data": "grün"}
    assert letter(b"\xff").body() == {"data_base64": "/w=="}
