"""Whatever bytes come: they are JSON that can be handed on unchanged, or they are refused; nothing else happens."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.gateway.entrance.bodies import read_query, strict_json, written
from tessera.gateway.entrance.problems import Refusal
from tessera.gateway.operations.queries import EventQuery, JobQuery
from tessera_schemas.reasons import Code

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What it returned, or its refusal."""
    try:
        return call(*args)
    except Refusal as refusal:
        return refusal


@given(VALUES)
def test_json_is_handed_on_as_it_came(value: Any) -> None:
    read = strict_json(json.dumps(value).encode())
    assert read == value
    assert strict_json(written(read)) == value


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'"\xed\xa0\x80"')
@example(b"-")
@example(b"9" * 10_000)
@example(b"\xef\xbb\xbf{}")
def test_any_other_bytes_are_refused_in_words(data: bytes) -> None:
    read = attempt(strict_json, data)
    if isinstance(read, Refusal):
        assert read.code in (Code.NOT_JSON, Code.DUPLICATE_KEY)
        assert read.problem().sentence.isprintable()
    else:
        assert json.loads(data) == read


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4), st.sampled_from((JobQuery, EventQuery)))
def test_any_query_is_read_or_refused_in_words(query: dict[str, str], model: Any) -> None:
    request = make_mocked_request("GET", "/")
    request = request.clone(rel_url=request.rel_url.with_query(_encodable(query)))
    read = attempt(read_query, request, model)
    if isinstance(read, Refusal):
        assert read.status in (400, 422)
        assert all(reason.sentence().isprintable() for reason in read.reasons)
    else:
        assert isinstance(read, model)


def _encodable(query: dict[str, str]) -> dict[str, str]:
    return {k.encode("utf-8", "replace").decode(): v.encode("utf-8", "replace").decode() for k, v in query.items()}


def test_every_reason_of_a_query_is_told() -> None:
    request = make_mocked_request("GET", "/v1/jobs?limit=0&queue=NO&what=1")
    with pytest.raises(Refusal) as caught:
        read_query(request, JobQuery)
    assert {reason.field for reason in caught.value.reasons} == {"limit", "queue", "what"}
