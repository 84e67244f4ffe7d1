"""Rules of the house's figures that need a decision: which names nobody has to name, and which lines count."""

import ast

import pytest

from tests.project.house_figures import called_by_others, comment_lines, function_lengths, kinds_of_records

KINDS = kinds_of_records({"tessera_schemas.ledger": ast.parse('class Held:\n    kind: Literal["held"]')})


def called(source: str) -> set[str]:
    return {getattr(node, "name", "") for node in called_by_others(ast.parse(source), KINDS)}


LOOKUP = 'def take(self, record):\n        getattr(self, f"_{record.kind}")(record)'
FOREIGN = "from urllib.request import HTTPRedirectHandler\nclass A(HTTPRedirectHandler):\n"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class A:\n    def __aiter__(self): ...", {"__aiter__"}),
        (f"class A:\n    {LOOKUP}\n    def _held(self, r): ...\n    def _forgotten(self, r): ...", {"_held"}),
        (f"class A:\n    {LOOKUP}\nclass B:\n    def _held(self, r): ...", set()),
        (f"{FOREIGN}    def redirect_request(self): ...\n    def unheard_of(self): ...", {"redirect_request"}),
        ("from tessera.kernel.ports import Clock\nclass A(Clock):\n    def now(self): ...", set()),
        ("def __getattr__(name): ...", set()),
    ],
    ids=["of Python", "by kind", "by another class's lookup", "of a foreign base", "of a base of ours", "no method"],
)
def test_methods_that_something_else_calls_are_told_from_dead_ones(source: str, names: set[str]) -> None:
    assert called(source) == names


EXPLAINED = 'def f():\n    # Why it is two.\n    text = """\n    # no comment\n    """  # beside code\n    return 2\n'


def test_a_line_that_is_a_comment_counts_for_nothing_and_one_beside_code_counts() -> None:
    assert comment_lines(EXPLAINED) == {2}
    assert list(function_lengths(EXPLAINED, ast.parse(EXPLAINED))) == [5]
