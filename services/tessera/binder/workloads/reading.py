"""The API's JSON, in which anything may be missing or be of another shape than one thinks. Pure."""

import re
from datetime import UTC, datetime
from typing import Any

from tessera_schemas.base import INT_MAX, Json
from tessera_schemas.reasons import Code, Reason

OTHER_LETTERS = re.compile(r"[^a-z0-9]")
FIELD_CHARACTERS, DETAIL_CHARACTERS = 300, 500


def at(value: Any, *path: str) -> Any:
    """The value at the path; None where there is nothing."""
    for name in path:
        if type(value) is not dict:
            return None
        value = value.get(name)
    return value


def mapping(value: Any, *path: str) -> Json:
    """Object at the path; an empty one where nothing, or something else, is there."""
    found = at(value, *path)
    return found if isinstance(found, dict) else {}


def items(value: Any, *path: str) -> list[Json]:
    """The objects of a list."""
    found = at(value, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def text(value: Any, *path: str) -> str:
    """String at the path; "" where nothing, or something else, is there."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def whole(value: Any, *path: str) -> int | None:
    """A number as the API writes it; None for what is none, for true, and below zero."""
    found = at(value, *path)
    return found if type(found) is int and found >= 0 else None


def selects(selector: Json, labels: Json) -> bool:
    """Whether a label selector of the API selects what has these labels; an empty one selects everything."""
    wanted = mapping(selector, "matchLabels")
    return wanted.items() <= labels.items() and all(_holds(one, labels) for one in items(selector, "matchExpressions"))


def _holds(expression: Json, labels: Json) -> bool:
    key, values = text(expression, "key"), expression.get("values")
    among = labels.get(key) in values if isinstance(values, list) else False
    match text(expression, "operator"):
        case "In":
            return among
        case "NotIn":
            return not among
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def as_name(given: str) -> str:
    """A DNS label as like it as can be; "" when nothing of it is left."""
    return OTHER_LETTERS.sub("-", given.lower())[:63].strip("-")


def as_part(given: str) -> str:
    """Name of a part of a group, as far as it can name a role."""
    return as_name(given) or "pods"


def number_in(words: str) -> int:
    """The number that an annotation or a label says in digits; 0 where it says none."""
    return int(words) if words.isascii() and words.isdecimal() and len(words) < 10 else 0


def format_time(ms: int, precision: str = "seconds") -> str:
    """Unix milliseconds as the API writes times: RFC 3339 in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def no(code: Code, field: str = "", detail: str = "", **numbers: int) -> Reason:
    """A reason whose texts and numbers come from users: cut to what can be written down."""
    bounded = {name: max(-INT_MAX, min(number, INT_MAX)) for name, number in numbers.items()}
    return Reason(
        code=code, field=_plain(field, FIELD_CHARACTERS), numbers=bounded, detail=_plain(detail, DETAIL_CHARACTERS)
    )


def _plain(words: str, characters: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in words[:characters])
