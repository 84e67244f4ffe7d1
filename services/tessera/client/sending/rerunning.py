"""A job's spec sent again as a new job, with changes by path: `roles.worker.resources.gpus=4`."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from tessera.client.connect.api import path_of
from tessera.client.connect.connecting import api_of, bound_user, views_of
from tessera.client.connect.shard_views import is_whole_id
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.domain.work.current_spec import with_changes
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.views import JobView

TEXTS = ("env", "node_selector")
"""Maps of a spec whose values are texts."""


async def find_spec(where: Where, identity: str | None, named: str) -> tuple[Json, str]:
    """
    The spec of a job, live or ended, and its tenant ("" where the token says it); of a task that task alone. Its user
    is the one to whom the token is bound.

    Raises Failure, Refused, Transient.
    """
    try:
        views = views_of(where, identity)
        job = await views.job(named)
    except (Failure, Refused):
        if not is_whole_id(named):
            raise
        spec, tenant = (await api_of(where, identity).get(path_of(named, "spec")))["spec"], ""  # not in lists any more
    else:
        spec, tenant = narrow_to_task(await read_current_spec(where, identity, job), job), job.tenant
    user = await bound_user(where, identity)
    return spec | ({"user": user} if user else {}), tenant


async def read_current_spec(where: Where, identity: str | None, job: JobView) -> Json:
    """
    The spec with what changed since its submit, of a task that of its array. Raises Failure, Transient.

    Raises Refused for work that users made in Kubernetes, and where the ledger has the spec no more.
    """
    if job.owner:
        detail = f"it has no spec of its own: {job.owner} is written in Kubernetes"
        raise Refused((Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail),))
    found: Json = (await api_of(where, identity).get(path_of(job.task_of or job.job_id, "spec")))["spec"]
    if not job.task_of:
        return found
    spec = JobSpec.model_validate(found)
    changed = spec if job.changes is None else with_changes(spec, job.changes)  # a task may have its own
    return changed.model_dump(mode="json", exclude_none=True)


def narrow_to_task(spec: Json, job: JobView) -> Json:
    """The spec of an array, for one of its tasks an array of that task alone: its program still knows its index."""
    return {**spec, "array": {"tasks": str(job.task)}} if job.task_of else spec


def read_changes(spec: Json, said: Sequence[str]) -> Json:
    """
    `PATH=VALUE` as paths and values: a text where the spec has one, else what the value is as JSON, else a text.

    Raises Failure.
    """
    found: Json = {}
    for text in said:
        path, equals, value = text.partition("=")
        if not equals or not path or path in found:
            raise Failure(Exit.USAGE, f"--set {text}: write PATH=VALUE, each path once")
        found[path] = _value(spec, path, value)
    return found


def apply_changes(spec: Json, changes: Mapping[str, Any]) -> Json:
    """The spec with other values at these paths. Raises Failure for a path on which nothing can be."""
    made = deepcopy(spec)
    for path, value in changes.items():
        *way, last = path.split(".")
        at: Any = made
        for name in way:
            at = _part(at, name, path, make=True)
        if isinstance(at, list):
            at[_index(at, last, path)] = value
        elif isinstance(at, dict):
            at[last] = value
        else:
            raise _nothing(path, last)
    return made


def _value(spec: Json, path: str, text: str) -> Any:
    *way, last = path.split(".")
    at: Any = spec
    for name in way:
        at = None if at is None else _part(at, name, path)
    now = None if at is None or (isinstance(at, dict) and last not in at) else _part(at, last, path)
    if isinstance(now, str) or (way and way[-1] in TEXTS):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _part(at: Any, name: str, path: str, make: bool = False) -> Any:
    """Field of a mapping, None where it is not said, or item of a list by its `name` or its index."""
    if isinstance(at, list):
        return at[_index(at, name, path)]
    if not isinstance(at, dict):
        raise _nothing(path, name)
    if make and at.get(name) is None:
        at[name] = {}
    return at.get(name)


def _index(at: Sequence[Any], name: str, path: str) -> int:
    for index, each in enumerate(at):
        if name in (str(index), each.get("name") if isinstance(each, dict) else None):
            return index
    raise _nothing(path, name)


def _nothing(path: str, name: str) -> Failure:
    return Failure(Exit.USAGE, f"{path}: the spec has no {name} there; `tessera get JOB -o yaml` shows it")
