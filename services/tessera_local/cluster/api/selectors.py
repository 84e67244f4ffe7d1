"""
Selectors of lists and watches: of labels by equality (`a=b`, `a!=b`) and existence (`a`, `!a`), of the fields of pods
and events by equality; several joined by commas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera_local.cluster.api import answers
from tessera_schemas.base import Json

FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "spec.schedulerName",
    "status.phase",
    "involvedObject.uid",
)
Fields = tuple[str, ...]
"""An object's values of `FIELDS`; "" for what it has not."""
NO_FIELDS: Fields = ("",) * len(FIELDS)


def fields_of(found: Json) -> Fields:
    """Values of `FIELDS` in their order; "" for a field that the object has not."""
    meta, spec = found["metadata"], found.get("spec") or {}
    named = meta["name"], meta.get("namespace", "")
    phase = (found.get("status") or {}).get("phase") or ""
    about = (found.get("involvedObject") or {}).get("uid") or ""
    return *named, spec.get("nodeName") or "", spec.get("schedulerName") or "", phase, about


@dataclass(frozen=True, slots=True)
class Selector:
    """
    All of `equal`, `unequal`, `present` and `absent` must hold; empty selects everything. What is absent is unequal.

    `fields` are (place in `FIELDS`, value, whether it is to be equal).
    """

    equal: tuple[tuple[str, str], ...] = ()
    present: tuple[str, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    fields: tuple[tuple[int, str, bool], ...] = ()

    @property
    def selects_all(self) -> bool:
        """True when no term is given, so that nothing need be compared."""
        return not (self.equal or self.present or self.unequal or self.absent or self.fields)

    def matches(self, labels: Mapping[str, str], fields: Fields = NO_FIELDS) -> bool:
        """Compare labels, and fields in the order of `FIELDS`, with all terms."""
        for key, value in self.equal:
            if labels.get(key) != value:
                return False
        if any(labels.get(key) == value for key, value in self.unequal):
            return False
        if any((fields[at] == value) is not equal for at, value, equal in self.fields):
            return False
        return all(key in labels for key in self.present) and not any(key in labels for key in self.absent)


def parse_selector(text: str, fields: str = "") -> Selector:
    """Raises ApiError 400 for a form that is not simulated (`in`): a wrong answer would be worse."""
    equal: list[tuple[str, str]] = []
    unequal: list[tuple[str, str]] = []
    present: list[str] = []
    absent: list[str] = []
    for term in _terms(text):
        negated = term.startswith("!")
        differs = "!=" in term
        key, separator, value = term.removeprefix("!").partition("!=" if differs else "=")
        if any(sign in key + value for sign in "!()") or " " in key.strip() or (negated and separator):
            raise answers.bad_request(f"label selector {term!r} is not supported by the simulated cluster")
        if differs:
            unequal.append((key.strip(), value.strip()))
        elif separator:
            equal.append((key.strip(), value.removeprefix("=").strip()))
        else:
            (absent if negated else present).append(key.strip())
    asked = tuple(_field(term) for term in _terms(fields))
    return Selector(tuple(equal), tuple(present), tuple(unequal), tuple(absent), asked)


def _terms(text: str) -> Iterator[str]:
    return filter(None, (part.strip() for part in text.split(",")))


def _field(term: str) -> tuple[int, str, bool]:
    differs = "!=" in term
    name, separator, value = term.partition("!=" if differs else "=")
    if not separator or name.strip() not in FIELDS:
        raise answers.bad_request(f"field selector {term!r} is not supported by the simulated cluster")
    return FIELDS.index(name.strip()), value.removeprefix("=").strip(), not differs
