"""
Reading what a client sends: a JSON body or a query, as one of our models, or every reason why it is not one.

Bodies are read strictly: UTF-8, no key twice, no NaN or infinity, nested no deeper than 32. What a spec may say is
admission's to judge; here it only has to be JSON that can be handed on.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from tessera.gateway.entrance.problems import Refusal, refused
from tessera_schemas.reasons import Code, Reason

DEPTH_MAX = 32
REASONS_MAX = 64
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")

M = TypeVar("M", bound=BaseModel)


async def read_body(request: web.Request, model: type[M]) -> M:
    """Raises Refusal. An empty body is `{}`."""
    if any(coding.lower() != "identity" for coding in request.headers.getall("Content-Encoding", [])):
        raise refused(Code.INVALID_FIELD, "Content-Encoding", "send the body uncompressed and without Content-Encoding")
    data = await request.read()
    if data and request.content_type != "application/json":
        raise refused(Code.INVALID_FIELD, "Content-Type", "must be application/json")
    if data and (request.charset or "utf-8").lower() not in CHARSETS:
        raise refused(Code.INVALID_FIELD, "Content-Type", "JSON is read as UTF-8; leave charset out")
    raw = strict_json(data or b"{}")
    if not isinstance(raw, dict):
        raise refused(Code.NOT_JSON, detail="the body must be a JSON object")
    return read_as(model, raw)


def read_query(request: web.Request, model: type[M]) -> M:
    """Raises Refusal; a name that stands for one value may be there once."""
    raw: dict[str, Any] = {}
    for name in request.query:
        values = request.query.getall(name)
        several = name in model.model_fields and isinstance(model.model_fields[name].default, tuple)
        if len(values) > 1 and not several:
            raise refused(Code.DUPLICATE_KEY, _plain(name))
        raw[name] = values if several else values[0]
    return read_as(model, raw)


def strict_json(data: bytes) -> Any:
    """Raises Refusal."""
    try:
        value = _DECODER.decode(data.decode())
    except RecursionError:
        raise refused(Code.NOT_JSON, detail="nested too deeply") from None
    except UnicodeDecodeError:
        raise refused(Code.NOT_JSON, detail="not UTF-8") from None
    except ValueError as error:
        raise refused(Code.NOT_JSON, detail=_plain(str(error))) from None
    if _deeper(value, DEPTH_MAX):
        raise refused(Code.NOT_JSON, detail=f"nested deeper than {DEPTH_MAX}")
    return value


def written(value: Any) -> bytes:
    """JSON that reads back as `value`. Raises Refusal for text that UTF-8 cannot write down."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise refused(Code.NOT_JSON, detail="half of a surrogate pair") from None


def read_as(model: type[M], raw: dict[str, Any]) -> M:
    """The model of a mapping that was sent. Raises Refusal with all that is wrong with it."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise Refusal(*_reasons(error)) from None


def _reasons(error: ValidationError) -> Iterable[Reason]:
    codes = {"extra_forbidden": Code.UNKNOWN_FIELD, "missing": Code.MISSING_FIELD}
    for mistake in error.errors(include_url=False, include_context=False, include_input=False)[:REASONS_MAX]:
        code = codes.get(mistake["type"], Code.INVALID_FIELD)
        detail = "" if code is not Code.INVALID_FIELD else _plain(mistake["msg"].removeprefix("Value error, "))
        yield Reason(code=code, field=_plain(".".join(str(step) for step in mistake["loc"]))[:300], detail=detail)


def _plain(text: str) -> str:
    # Texts of a client, cut, and without what cannot be written down again.
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in inner)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise refused(Code.DUPLICATE_KEY, _plain(repeated))
    return found


def _not_a_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_not_a_number, parse_float=_finite)
