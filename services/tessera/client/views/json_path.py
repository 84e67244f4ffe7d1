"""JSONPath templates as kubectl's users write them: `{.items[*].name}`. Steps are names, numbers and `[*]`."""

import json
import re
from typing import Any

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[([0-9]+|\*|-1)\]|\['([^']+)'\]")
_PART = re.compile(r"\{([^{}]*)\}")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def read_path(text: str) -> list[str | int | None]:
    """Steps of one path; None is `[*]`. Raises ValueError for a path that is none."""
    steps: list[str | int | None] = []
    at = 0
    path = text.strip().removeprefix("$").removeprefix("@")
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"jsonpath: {text!r} is no path; write {{.items[*].name}}")
        name, index, quoted = found.groups()
        steps.append((None if index == "*" else int(index)) if index else name or quoted)
        at = found.end()
    return steps


def check_template(template: str) -> None:
    """Raises ValueError for a template with a part that is neither a path nor a quoted text."""
    if not _PART.search(template) or set("{}") & set(_PART.sub("", template)):
        raise ValueError(f"jsonpath: {template!r} has no path in braces; write {{.items[*].name}}")
    for part in _PART.findall(template):
        if not part.startswith('"'):
            read_path(part)


def fill_template(template: str, value: Any) -> str:
    """The template with each path in braces replaced by what it finds, several values with blanks between."""

    def filled(found: re.Match[str]) -> str:
        part = found[1]
        if part.startswith('"'):
            return re.sub(r"\\[nt]", lambda escape: _ESCAPES[escape[0]], part.strip('"'))
        return " ".join(map(_text, find_values(value, read_path(part))))

    return _PART.sub(filled, template)


def find_values(value: Any, steps: list[str | int | None]) -> list[Any]:
    """Values that the steps lead to; none where the value has no such part."""
    found = [value]
    for step in steps:
        found = [part for each in found for part in _parts(each, step)]
    return found


def _parts(value: Any, step: str | int | None) -> list[Any]:
    if step is None:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(step, int):
        return [value[step]] if isinstance(value, list) and -len(value) <= step < len(value) else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
