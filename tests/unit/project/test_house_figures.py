"""Rules of the house's figures that need a decision: which names nobody has to name."""

import ast

import pytest

from tests.project.house_figures import called_by_others, kinds_of_records

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
