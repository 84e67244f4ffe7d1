"""What is published goes out in the library's own bytes, and nothing in it is read as a command."""

import pytest
from nats.protocol import command

from tessera.kernel.errors import Poison
from tessera.kernel.nats.protocol import header_block, publish_command


def test_the_bytes_are_those_that_nats_py_would_send() -> None:
    block = header_block({"Nats-Msg-Id": "a:1", "traceparent": "00-ü"})
    assert block == "NATS/1.0\r\nNats-Msg-Id: a:1\r\ntraceparent: 00-ü\r\n\r\n".encode()
    assert publish_command("fact.main.binder.pods-made", "_INBOX.x.1", block, b"{}") == command.hpub_cmd(
        "fact.main.binder.pods-made", "_INBOX.x.1", block, b"{}"
    )
    assert publish_command("a", "", b"", b"+ACK") == command.pub_cmd("a", "", b"+ACK")


def test_a_line_end_in_a_header_begins_no_other_header() -> None:
    assert header_block({"Reason": "first\r\nNats-Rollup: all\nthird"}) == (
        b"NATS/1.0\r\nReason: first  Nats-Rollup: all third\r\n\r\n"
    )


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nSUB > 1", "a\t", "a\n"])
def test_what_is_no_subject_is_never_written(subject: str) -> None:
    with pytest.raises(Poison):
        publish_command(subject, "", b"", b"")
    if subject:
        with pytest.raises(Poison):
            publish_command("a", subject, b"", b"")
