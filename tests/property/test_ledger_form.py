"""The stored form of ledger messages: what was compressed comes back, and bytes that are damaged never do as others."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tessera_schemas.shard.ledger_form import COMPRESSED_FROM, PLAIN_BYTES_MAX, plain_json, stored_form

JSON = st.binary(max_size=2000).map(lambda data: b"{" + data + b"}")


def packed(plain: bytes) -> bytes:
    """A message as a ledger stores it whose readers all know the compressed form."""
    return stored_form(plain, COMPRESSED_FROM)


@given(JSON)
def test_a_message_reads_the_same_in_both_forms(plain: bytes) -> None:
    assert plain_json(plain) == plain_json(packed(plain)) == plain


@given(JSON, st.data())
def test_a_changed_or_cut_message_never_reads_as_another(plain: bytes, data: st.DataObject) -> None:
    stored = packed(plain)
    at = data.draw(st.integers(0, len(stored) - 1))
    flipped = stored[:at] + bytes([stored[at] ^ data.draw(st.integers(1, 255))]) + stored[at + 1 :]
    assert plain_json(flipped) in (plain, flipped), "a flag of the header that changes nothing may differ"
    assert plain_json(stored[:at]) == stored[:at]


@given(JSON, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_end_are_no_message(plain: bytes, more: bytes) -> None:
    assert plain_json(packed(plain) + more) == packed(plain) + more


def test_nobody_unpacks_more_than_a_message_may_have() -> None:
    longest, bomb = packed(b"{" + bytes(PLAIN_BYTES_MAX - 1)), zlib.compress(bytes(PLAIN_BYTES_MAX + 1))
    assert len(plain_json(longest)) == PLAIN_BYTES_MAX
    assert plain_json(bomb) is bomb
