"""Label selectors of lists and watches: equality (`a=b`), existence (`a`), and both joined by commas."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.lab.cluster import answers


@dataclass(frozen=True, slots=True)
class Selector:
    """All of `equal` and all of `present` must hold; empty selects everything."""

    equal: tuple[tuple[str, str], ...] = ()
    present: tuple[str, ...] = ()

    @property
    def selects_all(self) -> bool:
        return not self.equal and not self.present

    def matches(self, labels: Mapping[str, str]) -> bool:
        for key, value in self.equal:
            if labels.get(key) != value:
                return False
        return all(key in labels for key in self.present)


def parse_selector(text: str) -> Selector:
    """Raises ApiError 400 for a form that is not simulated (`!=`, `in`, `!a`): a wrong answer would be worse."""
    equal: list[tuple[str, str]] = []
    present: list[str] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = term.partition("=")
        if any(sign in term for sign in "!()") or " " in key.strip():
            raise answers.bad_request(f"label selector {term!r} is not supported by the simulated cluster")
        if separator:
            equal.append((key.strip(), value.removeprefix("=").strip()))
        else:
            present.append(key)
    return Selector(tuple(equal), tuple(present))
