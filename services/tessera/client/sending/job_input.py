"""A job or a command as a caller hands it over, read as strictly as admission will, before anything is sent."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tessera.client.input.files import as_json, not_json
from tessera.client.outcomes import Refused
from tessera.client.sending.keys import choose_key
from tessera.kernel.ids import random_key

if TYPE_CHECKING:
    from tessera_schemas.job import JobSpec
    from tessera_schemas.reasons import PublicReason

UNUSED = "unused"
"""Stands for the key of a command that is only read yet."""


def full_spec(spec: "JobSpec | Mapping[str, Any]") -> dict[str, Any]:
    """The spec as it is sent. Raises Refused for a quantity that is none, and for what is no mapping."""
    full, against = read_spec(spec)
    if against:
        raise Refused(against)
    return full


def read_spec(spec: "JobSpec | Mapping[str, Any]") -> "tuple[dict[str, Any], tuple[PublicReason, ...]]":
    """The spec as it is sent, and the quantities of it that are none. Raises Refused for what is no mapping."""
    from tessera_schemas.job import JobSpec

    if isinstance(spec, JobSpec):
        return spec.model_dump(mode="json", exclude_unset=True), ()
    if not isinstance(spec, Mapping):
        raise not_json(f"a job is a mapping, as {{'name': …}}, and no {type(spec).__name__}")
    from tessera_schemas.work.short_form import ShortFormError, full_job

    try:
        return full_job(spec), ()
    except ShortFormError as error:
        return error.made, error.reasons()


def read_submit(asked: Mapping[str, Any], key: str | None, notify: Callable[[str], None]) -> tuple[Any, str]:
    """
    A submit as the contract reads it, and the key to send it under: the one given, else one from the CI run, else a
    random one, which is said first. Raises Refused with all reasons.
    """
    from tessera_schemas.commands import SubmitJob

    read = read_command(asked)
    name = read.spec.name if isinstance(read, SubmitJob) else read.name or read.template
    chosen = choose_key(key, name, os.environ, random_key)
    if chosen.source == "random":
        notify(f"key {chosen.key}")
    return read, chosen.key


def find_faults(asked: Mapping[str, Any]) -> "tuple[PublicReason, ...]":
    """The reasons that the contract has against the submit."""
    try:
        read_command(asked)
    except Refused as refused:
        return refused.reasons
    return ()


def read_command(command: Mapping[str, Any]) -> Any:
    """Read here as strictly as admission will, so that mistakes are told before anything is sent. Raises Refused."""
    from tessera_schemas.text.reading import read_tenant_command

    keyed = {"key": UNUSED} if str(command["kind"]).startswith("submit") else {}
    parsed = read_tenant_command(as_json({"v": 1, **keyed, **command}))
    if parsed.command is None:
        raise Refused(parsed.reasons)
    return parsed.command
