"""Shared building blocks: strict and lenient models, names, ids, bounded integers."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

INT_MAX = 2**53 - 1  # JSON readers in other languages keep integers exact up to here
GPU_MILLI = 1000
T = TypeVar("T")
Json = dict[str, Any]
"""A JSON object, as it is read or will be written."""
LATE = ConfigDict(defer_build=True)
"""For a `TypeAdapter`: its validator is built when it is first used, as those of models are."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A DNS label: it becomes part of subjects, Redis keys and Kubernetes names."""


def printable(text: str) -> str:
    """The text as it is. Raises ValueError for line breaks, control characters and the like."""
    if not text.isprintable():
        raise ValueError("printable characters only")
    return text


def all_printable(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The texts as they are. Raises ValueError as `printable` does."""
    return tuple(map(printable, texts))


JobName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$"), AfterValidator(printable)
]
"""A name as people give it, in any script; nothing is made of it: pods and subjects are called by the job's id."""

JobId = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{20}$")]
RunId = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{20}-[0-9]{1,6}$")]
NODE_NAME_LENGTH_MAX = 253
NodeName = Annotated[
    str, StringConstraints(min_length=1, max_length=NODE_NAME_LENGTH_MAX, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
Uid = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(max_length=1024)]
Sentence = Annotated[Text, AfterValidator(printable)]
"""Text that a command says; stored ones may be older than this rule."""
Notes = Annotated[tuple[Annotated[str, StringConstraints(max_length=512)], ...], Field(max_length=32)]
"""Sentences about a submit that its sender wants to be kept with the job."""
Count = Annotated[int, Field(ge=0, le=INT_MAX, strict=True)]
Positive = Annotated[int, Field(ge=1, le=INT_MAX, strict=True)]
Millis = Annotated[int, Field(ge=0, le=INT_MAX, strict=True, description="Milliseconds since the Unix epoch")]


def later(default: T) -> T:
    """
    The default of a field that came after 0.3, in a model that stands in the state (the configuration, a reason, …).

    A value equal to it is left out of every written form, so that an older ledger's state hashes as it did.
    """
    return Field(default=default, exclude_if=lambda value: bool(value == default))


class Strict(BaseModel):
    """Frozen, and an unknown field is an error: submits, facts, orders, ledger records."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def to_bytes(self) -> bytes:
        """
        Compact JSON, fields in declared order, values equal to their default left out: the stored form.

        So a default of a released version never changes, and what tells types apart (`kind`, `v`) has none.
        """
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)

    def join_bytes(self, **lists: Sequence[bytes]) -> bytes:
        """`to_bytes`, of which the last fields are these `lists`: each part as its own `to_bytes` gave it."""
        head = self.__pydantic_serializer__.to_json(self, exclude_defaults=True, exclude=set(lists))
        ends = (b',"%s":[%s]' % (name.encode(), b",".join(parts)) for name, parts in lists.items() if parts)
        return head[:-1] + b"".join(ends) + b"}"


class Lenient(BaseModel):
    """Frozen, and unknown fields are ignored: public events and views, which only ever gain optional fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    @classmethod
    def from_bytes(cls, stored: bytes | str) -> Self:
        """Read what a newer build may have written: unknown fields are ignored at every depth."""
        return cls.model_validate_json(stored, extra="ignore")

    def to_bytes(self) -> bytes:
        """The stored form, as of `Strict`: defaults are left out, so a new optional field changes no old bytes."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)


def job_id(shard: str, tenant: str, key: str) -> str:
    """The one id of a submit, 20 base32 characters: a retry with the same key is the same job."""
    digest = hashlib.sha256(b"\x00".join(part.encode() for part in (shard, tenant, key))).digest()
    return base64.b32encode(digest[:15]).decode().lower()[:20]  # what is behind makes no letter of these


DIGEST_CHARACTERS = 16
"""Of the digest of a spec, which is shown to tell one spec under a key from another."""


def number_or_id(number: int, job: str) -> str:
    """The name of a job among Slurm's words: its number in the shard, or its id where it is older than numbers."""
    return str(number) if number else job


def run_id(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"
