"""Words that are to reach a program as they were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_schemas.work.pod_template import literally
from tests.kubelet import expanded


@given(st.text(alphabet="$()A éx\n'"))
def test_a_program_sees_what_was_written_whatever_its_container_has(text: str) -> None:
    assert expanded(literally(text), {"A": "other", "": "none", "x": "y"}) == text


@pytest.mark.parametrize("text", ["echo $HOME ${A[0]} $?", "", "100$ ", "é"])
def test_what_kubernetes_does_not_read_stays_as_it_is(text: str) -> None:
    assert literally(text) == text
