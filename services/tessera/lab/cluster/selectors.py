"""Label selectors of lists and watches: equality (`a=b`, `a!=b`), existence (`a`), and several joined by commas."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.lab.cluster import answers


@dataclass(frozen=True, slots=True)
class Selector:
    """All of `equal`, `unequal` and `present` must hold; empty selects everything. What is absent is unequal."""

    equal: tuple[tuple[str, str], ...] = ()
    present: tuple[str, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()

    @property
    def selects_all(self) -> bool:
        return not self.equal and not self.present and not self.unequal

    def matches(self, labels: Mapping[str, str]) -> bool:
        for key, value in self.equal:
            if labels.get(key) != value:
                return False
        if any(labels.get(key) == value for key, value in self.unequal):
            return False
        return all(key in labels for key in self.present)


def parse_selector(text: str) -> Selector:
    """Raises ApiError 400 for a form that is not simulated (`in`, `!a`): a wrong answer would be worse."""
    equal: list[tuple[str, str]] = []
    unequal: list[tuple[str, str]] = []
    present: list[str] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        differs = "!=" in term
        key, separator, value = term.partition("!=" if differs else "=")
        if any(sign in key + value for sign in "!()") or " " in key.strip():
            raise answers.bad_request(f"label selector {term!r} is not supported by the simulated cluster")
        if differs:
            unequal.append((key.strip(), value.strip()))
        elif separator:
            equal.append((key.strip(), value.removeprefix("=").strip()))
        else:
            present.append(key)
    return Selector(tuple(equal), tuple(present), tuple(unequal))
