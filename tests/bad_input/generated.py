"""Commands that were good until chance changed something of them."""

import copy
import json
from random import Random
from typing import Any

from tests.bad_input.corpora import JSON_TEXTS, NAUGHTY

Json = dict[str, Any]
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**53,
        2**53 + 1,
        2**64,
        -(2**63),
        0.5,
        1e308,
        -0.0,
        [],
        {},
        [[]],
        [None],
        {"": None},
    ),
    *({"a": {"b": {"c": 1}}}, [1] * 300, {str(n): n for n in range(300)}, "x" * 70_000),
)
NAMES = (
    "kind",
    "v",
    "key",
    "spec",
    "tenant",
    "roles",
    "name",
    "hostPID",
    "securityContext",
    "x",
    "",
    "replicas",
    "__class__",
)


def mutated(random: Random, command: Json) -> bytes:
    """The command with one to four changes, as bytes; now and then the bytes are changed, too."""
    changed = copy.deepcopy(command)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change(random, changed)
    data = json.dumps(changed, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    draw = random.random()
    if draw < 0.08:
        return flipped(random, data)
    if draw < 0.11:
        return data[: random.randrange(len(data) + 1)]
    if draw < 0.12:
        return random.choice(JSON_TEXTS)
    return data


def flipped(random: Random, data: bytes) -> bytes:
    """One byte is another one."""
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ random.randrange(1, 256),)) + data[at + 1 :]


def drawn(random: Random) -> Any:
    """A value that fits hardly anywhere."""
    return copy.deepcopy(random.choice(VALUES)) if random.random() < 0.6 else random.choice(NAUGHTY)


def _change(random: Random, root: Json) -> None:
    places: list[tuple[Any, Any]] = []
    todo: list[Any] = [root]
    while todo:
        at = todo.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        for key in keys:
            places.append((at, key))
            if isinstance(at[key], dict | list):
                todo.append(at[key])
    if not places:
        return
    at, key = random.choice(places)
    draw = random.random()
    if draw < 0.5:
        at[key] = drawn(random)
    elif draw < 0.65:
        del at[key]
    elif isinstance(at, dict):
        at[random.choice((*NAMES, random.choice(NAUGHTY)))] = at[key] if random.random() < 0.5 else drawn(random)
    else:
        at.append(copy.deepcopy(at[key]))
