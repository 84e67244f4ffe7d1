"""Changed copies of the state's entities, which folding makes several of for each job."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

E = TypeVar("E")


@cache
def _layout(
    kind: type[Any],
) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, int], tuple[Callable[..., None], ...]]:
    """How to read all fields at once, where each stands, and how to set them."""
    names = [field.name for field in fields(kind)]
    return (
        attrgetter(*names),
        {name: at for at, name in enumerate(names)},
        tuple(kind.__dict__[n].__set__ for n in names),
    )


def evolved(entity: E, **changes: Any) -> E:
    """
    `dataclasses.replace(entity, **changes)`, at 0.4 of its cost.

    For frozen dataclasses with slots and at least two fields, all of them given to `__init__` and nothing done after
    it: then setting every slot of a new object is all that `__init__` does. Raises KeyError for a name that is no
    field.
    """
    kind: Any = type(entity)
    read, place, setters = _layout(kind)
    values = list(read(entity))
    for name, value in changes.items():
        values[place[name]] = value
    new: E = object.__new__(kind)
    for put, value in zip(setters, values, strict=True):
        put(new, value)
    return new
