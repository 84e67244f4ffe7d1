"""
Selectors in CEL: which devices expressions take. Pure; the one place that knows the library, and loads it when needed.

What bounds an evaluation: an expression has 10 KiB at most (the contract), nests 32 deep and repeats 10,000 times (the
library); and since a macro can use what was built so far several times, its growth is bounded here (`GROWTH_MAX`).
"""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tessera.binder.devices.decide.slices import DeviceShape
from tessera_schemas.base import Json
from tessera_schemas.text.quantities import quantity

GROWTH_MAX = 10_000_000
"""Elements and characters that an expression may come to build, as estimated from its text."""
_MACRO = re.compile(r"\b(?:bind|map|filter|exists|exists_one|existsOne|all|optMap|optFlatMap)\s*\(")
_GROWING = re.compile(r"\b(replace|join|format|quote)\s*\(")
_TEXT = re.compile(r"\"([^\"\\]*)\"|'([^'\\]*)'")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)
_LOOSE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(.*)")
_STATUS = re.compile(r"^[A-Z_]+: (?:ERROR: <input>:)?| \[[A-Z_]+\]$")
_QUANTITY, _VERSION = "quantity", "version"


class BadSelector(ValueError):
    """An expression that ends in an error, in words for its owner."""


def view_of(driver: str, shape: DeviceShape) -> Json:
    """A device as expressions see it."""
    attributes: dict[str, Json] = {}
    for name, (kind, value) in shape.attributes:
        domain, _, short = name.rpartition("/")
        attributes.setdefault(domain, {})[short] = _seen(kind, value)
    capacity: dict[str, Json] = {}
    for name, one in shape.capacity:
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[short] = {_QUANTITY: str(Fraction(one.value, 1000))}
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": shape.is_shared,
    }


def views_of(seen: Iterable[tuple[str, DeviceShape]]) -> list[tuple[Json, int]]:
    """Devices as expressions tell them apart, each once, and the devices that are alike: bit i stands for device i."""
    alike: dict[object, tuple[Json, int]] = {}
    for at, (driver, shape) in enumerate(seen):
        key = driver, shape.attributes, shape.capacity, shape.is_shared
        view, bits = alike.get(key) or (view_of(driver, shape), 0)
        alike[key] = view, bits | 1 << at
    return list(alike.values())


def check_selectors(expressions: Sequence[str], hidden: frozenset[str]) -> None:
    """
    Compile the expressions. Raises BadSelector for one that is no condition, or looks at an attribute in `hidden`.
    """
    names = {name.rpartition("/")[2] for name in hidden}
    for expression in expressions:
        if seen := sorted(names.intersection(re.findall(r"\w+", expression))):
            raise BadSelector(f"{expression:.200}: {seen[0]} is another on every device, and no selector can use it")
        _compile(expression)


def takes(expressions: Sequence[str], view: Json) -> bool:
    """
    Whether all expressions hold for a device. Raises BadSelector where one ends in an error, unless another is false.
    """
    failed: BadSelector | None = None
    for expression in expressions:
        try:
            if not _holds(expression, view):
                return False
        except BadSelector as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return True


def _holds(expression: str, view: Json) -> bool:
    found = _evaluate(expression, view)
    if isinstance(found, bool):
        return found
    # A domain that the device has not is an empty map, where the library ends with an error.
    named = {domain: Json() for pair in _TEXT.findall(expression) for domain in pair if domain}
    found = _evaluate(
        expression,
        view | {"attributes": named | view["attributes"], "capacity": named | view["capacity"]},
    )
    if isinstance(found, bool):
        return found
    raise BadSelector(f"{expression:.200}: {found}")


def _evaluate(expression: str, view: Json) -> bool | str:
    """The outcome, or what it ended with."""
    try:
        found = _compile(expression).eval(data={"device": view})
        value = found.value()
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        return _worded(error)
    if isinstance(value, bool):
        return value
    return _worded(value) if found.type() == _types()["ERROR"] else "it gives no boolean"


@lru_cache(maxsize=1024)
def _compile(expression: str) -> Any:
    macros, parts = len(_MACRO.findall(expression)), expression.count(",") + expression.count("+")
    if len(expression) * (macros + parts) ** macros > GROWTH_MAX * macros**macros:
        raise BadSelector(f"{expression:.200}: it may build too much")
    if growing := _GROWING.search(expression):
        raise BadSelector(f"{expression:.200}: {growing[1]} is not available in selectors")
    try:
        program = _environment().compile(expression)
    except (RuntimeError, ValueError) as error:
        raise BadSelector(f"{expression:.200}: {_worded(error)}") from error
    except ImportError as error:
        raise BadSelector("the binder runs without its extra `binder`, and reads no selectors") from error
    if program.return_type() not in (_types()["BOOL"], _types()["DYN"]):
        raise BadSelector(f"{expression:.200}: it gives no boolean")
    return program


def _worded(error: object) -> str:
    """The first line of the library's message without its codes."""
    line = _STATUS.sub("", str(error).split("\n")[0])
    return "".join(filter(str.isprintable, line))[:300] or "it ends in an error"


def _seen(kind: str, value: Any) -> Any:
    if kind.startswith("version"):
        return [_version(each) for each in value] if kind == "versions" else _version(value)
    return list(value) if isinstance(value, tuple) else value


# -- the library, and Kubernetes' own functions ---------------------------------------------------------------------


@lru_cache(maxsize=1)
def _types() -> dict[str, Any]:
    from cel_expr_python import cel

    return {name: getattr(cel.Type, name) for name in ("BOOL", "DYN", "ERROR", "INT", "MAP", "STRING", "DOUBLE")}


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

    made: dict[str, list[Any]] = {}
    for name, takes_these, gives, function in _FUNCTIONS:
        is_member = takes_these[0] == "MAP"
        parameters = [_types()[each] for each in takes_these]
        overload = cel.Overload(f"{name}_{'_'.join(takes_these)}", _types()[gives], parameters, is_member, function)
        made.setdefault(name, []).append(overload)
    return cel.NewEnv(
        variables={"device": cel.Type.DYN},
        extensions=[
            ext_bindings.ExtBindings(),
            ext_math.ExtMath(),
            ext_optional.ExtOptional(),
            ext_strings.ExtStrings(),
        ],
        functions=[cel.FunctionDecl(name, overloads) for name, overloads in made.items()],
    )


def _amount(text: str) -> Json:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return {_QUANTITY: str(sign * quantity(digits))}


def _version(text: str, loose: bool = False) -> Json:
    """Without the build, which no comparison looks at; `loose` takes `v1.2` for 1.2.0."""
    if loose and (found := _LOOSE.fullmatch(text)):
        text = ".".join(str(int(part or 0)) for part in found.groups()[:3]) + found[4]
    matched = _SEMVER.fullmatch(text)
    if matched is None:
        raise ValueError(f"{text!r:.80} is no version")
    return {_VERSION: ".".join(matched.groups()[:3]) + (f"-{matched[4]}" if matched[4] else "")}


def _is(read: Any) -> Any:
    def can(*arguments: Any) -> bool:
        try:
            read(*arguments)
        except ValueError:
            return False
        return True

    return can


def _number(amount: Json) -> Fraction:
    if _QUANTITY not in amount:
        raise ValueError("it is no quantity")
    return Fraction(amount[_QUANTITY])


def _whole(amount: Json) -> int:
    number = _number(amount)
    if number.denominator != 1 or abs(number) >= 2**63:
        raise ValueError(f"{number} is no whole number of 64 bits")
    return number.numerator


def _rank(value: Json) -> tuple[Any, ...]:
    """Sort key of versions: a release comes after what came before it, numbers before words."""
    if _VERSION not in value:
        raise ValueError("it is no version")
    numbers, _, before = str(value[_VERSION]).partition("-")
    words = [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in before.split(".")]
    return (*map(int, numbers.split(".")), not before, words)


def _compare(one: Json, other: Json) -> int:
    if (_QUANTITY in one) != (_QUANTITY in other):
        raise ValueError("a quantity and a version cannot be compared")
    a: Any
    b: Any
    a, b = (_number(one), _number(other)) if _QUANTITY in one else (_rank(one), _rank(other))
    return int(a > b) - int(a < b)


def _part(at: int) -> Any:
    return lambda value: _rank(value)[at]


_MAP, _TEXTS = ("MAP",), ("STRING",)
_FUNCTIONS: list[tuple[str, tuple[str, ...], str, Any]] = [
    ("quantity", _TEXTS, "MAP", _amount),
    ("isQuantity", _TEXTS, "BOOL", _is(_amount)),
    ("semver", _TEXTS, "MAP", _version),
    ("semver", ("STRING", "BOOL"), "MAP", _version),
    ("isSemver", _TEXTS, "BOOL", _is(_version)),
    ("isSemver", ("STRING", "BOOL"), "BOOL", _is(_version)),
    ("compareTo", ("MAP", "MAP"), "INT", _compare),
    ("isGreaterThan", ("MAP", "MAP"), "BOOL", lambda a, b: _compare(a, b) > 0),
    ("isLessThan", ("MAP", "MAP"), "BOOL", lambda a, b: _compare(a, b) < 0),
    ("sign", _MAP, "INT", lambda a: int(_number(a) > 0) - int(_number(a) < 0)),
    ("isInteger", _MAP, "BOOL", _is(_whole)),
    ("asInteger", _MAP, "INT", _whole),
    ("asApproximateFloat", _MAP, "DOUBLE", lambda a: float(_number(a))),
    ("add", ("MAP", "MAP"), "MAP", lambda a, b: {_QUANTITY: str(_number(a) + _number(b))}),
    ("add", ("MAP", "INT"), "MAP", lambda a, b: {_QUANTITY: str(_number(a) + b)}),
    ("sub", ("MAP", "MAP"), "MAP", lambda a, b: {_QUANTITY: str(_number(a) - _number(b))}),
    ("sub", ("MAP", "INT"), "MAP", lambda a, b: {_QUANTITY: str(_number(a) - b)}),
    ("major", _MAP, "INT", _part(0)),
    ("minor", _MAP, "INT", _part(1)),
    ("patch", _MAP, "INT", _part(2)),
]
"""Kubernetes' quantities and versions: name, types, the result's type. Both are maps of one entry in here."""


def class_that_answers(resource: str, classes: Iterable[Json]) -> str:
    """The class that answers a counted resource for Kubernetes: of several the newest, then the first by name."""
    named = [one for one in classes if (one.get("spec") or {}).get("extendedResourceName") == resource]
    by_name = sorted(str(one["metadata"]["name"]) for one in named)
    made = {one["metadata"]["name"]: str(one["metadata"].get("creationTimestamp") or "") for one in named}
    return max(by_name, key=lambda name: made[name], default="")
