"""The types that a state is made of, and their fields: what the canonical form of a release held."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from tessera.domain.storing.snapshot_rows import ROWS
from tessera_schemas.config import Config


def types_of_state() -> dict[str, type[Any]]:
    """Every dataclass and model that stands in a state, by name."""
    found: dict[str, type[Any]] = {}
    for root in (Config, *(adapter._type for adapter, _ in ROWS.values())):
        for part in _parts(root):
            found[part.__name__] = part
    return dict(sorted(found.items()))


def field_names(part: type[Any]) -> list[str]:
    """In declared order, which is the order of the canonical form."""
    return [each.name for each in fields(part)] if is_dataclass(part) else list(part.model_fields)


def _parts(kind: Any) -> Iterator[type[Any]]:
    if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        yield kind  # type: ignore[misc]
        for hint in get_type_hints(kind).values():
            yield from _parts(hint)
    for inner in get_args(kind):
        yield from _parts(inner)
