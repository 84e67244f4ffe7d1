"""
`python -m tessera_schemas.documents.generate [--check] OUT`: JSON Schemas and asyncapi.yaml, or what is not current.

One JSON Schema per type and version. Needs the extra `generate`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tessera_schemas.base import Lenient
from tessera_schemas.documents import asyncapi
from tessera_schemas.documents.registry import Registered, registered

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Plain(GenerateJsonSchema):
    """Without `discriminator`: a word of OpenAPI, which strict readers of JSON Schema refuse; `oneOf` says the same."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        made = super().tagged_union_schema(schema)
        made.pop("discriminator", None)
        return made


def json_schema(entry: Registered) -> dict[str, Any]:
    """The schema of one type. Readers of lenient types ignore unknown fields, so their schemas allow them."""
    made = entry.model.model_json_schema(mode="validation", schema_generator=_Plain)
    if issubclass(entry.model, Lenient):
        made = _open(made)
    return {"$schema": DIALECT, "$id": entry.urn, **made}


def _open(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _open(value) for key, value in node.items() if not (key == "additionalProperties" and value is False)
        }
    return [_open(value) for value in node] if isinstance(node, list) else node


def files() -> dict[str, str]:
    """File name to text, of everything that is generated."""
    made = {
        f"{entry.id}.json": json.dumps(json_schema(entry), indent=2, sort_keys=True) + "\n" for entry in registered()
    }
    made["asyncapi.yaml"] = yaml.safe_dump(asyncapi.document(), sort_keys=False, width=120)
    return made


def differences(out: Path) -> list[str]:
    """Differences between `out` and what would be generated now, one line per file."""
    wanted = files()
    present = {path.name for path in out.iterdir()} if out.is_dir() else set()
    return [
        *(f"missing: {name}" for name in sorted(wanted.keys() - present)),
        *(f"extra: {name}" for name in sorted(present - wanted.keys())),
        *(
            f"stale: {name}"
            for name in sorted(wanted.keys() & present)
            if (out / name).read_text(encoding="utf-8") != wanted[name]
        ),
    ]


def write(out: Path) -> None:
    """Make `out` hold exactly what is generated."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = files()
    for path in out.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (out / name).write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tessera_schemas.documents.generate")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if OUT is not current")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args(arguments)
    if not asked.check:
        write(asked.out)
        return 0
    found = differences(asked.out)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
