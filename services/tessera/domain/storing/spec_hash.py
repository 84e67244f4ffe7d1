"""The digest of what was submitted, as the contract defines it; every process that folds asks for it once a job."""

import hashlib

import orjson

from tessera_schemas.facts import JobAdmitted

ESCAPED = b"\x7f"  # JSON does not ask for it, but the contract's canonical form does, as for all that is not ASCII


def spec_hash(fact: JobAdmitted) -> str:
    """`fact.digest()`, at two thirds of its cost."""
    if fact.template is not None or fact.asked:
        return fact.digest()
    stored = fact.spec.__pydantic_serializer__.to_python(fact.spec, mode="json", exclude_defaults=True)
    canonical = orjson.dumps(stored, option=orjson.OPT_SORT_KEYS)
    if not canonical.isascii() or ESCAPED in canonical:
        return fact.digest()
    return hashlib.sha256(canonical).hexdigest()
