"""JSON of values that a caller hands over, in the form that the readers of the contract judge."""

import json
from typing import Any

import orjson

from tessera.client.outcomes import Refused


def as_json(value: Any) -> bytes:
    """
    The value as JSON: integers of any size and keys that are numbers, too, so that it is the contract that judges them.

    Raises Refused for what JSON has no form for, such as bytes, or a mapping that holds itself.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise not_json(str(error)) from error


def not_json(why: str) -> Refused:
    """The refusal of what is no job at all."""
    from tessera_schemas.reasons import Code
    from tessera_schemas.text.reading import refusal

    return Refused((refusal(Code.NOT_JSON, detail=why),))
