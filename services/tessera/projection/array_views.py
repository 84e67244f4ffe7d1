"""
Arrays and services as views show them, and how every view is made: at a quarter of the cost of a checked model.

A service is an array whose tasks are its replicas.
"""

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import EndedJob, Job
from tessera.domain.work.task_array import TaskArray
from tessera_schemas.views import ArrayView
from tessera_schemas.work.arrays import ranges_from

M = TypeVar("M", bound=BaseModel)


@cache
def _blank(kind: type[BaseModel]) -> dict[str, Any]:
    """The fields in declared order, with their defaults: what a model keeps of itself."""
    return {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}


def view(kind: type[M], **values: Any) -> M:
    """
    `kind.model_construct(**values)`, at a quarter of its cost.

    For models without aliases, private attributes or defaults that somebody may change; every field without a default
    is among `values`. Raises TypeError for a value that is no field.
    """
    fields = {**_blank(kind), **values}
    if len(fields) != len(_blank(kind)):
        raise TypeError(f"{kind.__name__} has no {sorted(values.keys() - _blank(kind).keys())}")
    made = kind.__new__(kind)
    for name, value in (
        ("__dict__", fields),
        ("__pydantic_fields_set__", set(values)),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
    ):
        object.__setattr__(made, name, value)
    return made


def array_view(job: Job | EndedJob, array: TaskArray) -> ArrayView:
    """Progress of an array; what a closed one never queued counts as cancelled."""
    never = array.count - array.queued if array.closed is not None and not array.is_service else 0
    task = job.gang.amount if isinstance(job, Job) and job.number else NOTHING  # rows of older jobs stay as they were
    return view(
        ArrayView,
        tasks=array.tasks,
        count=array.count,
        limit=array.limit,
        left="" if never or array.is_service else ranges_from(array.tasks, array.queued),
        waiting=array.waiting,
        running=array.running,
        succeeded=array.succeeded,
        failed=array.failed,
        cancelled=array.cancelled + never,
        replicas=array.wanted,
        min_replicas=array.least,
        max_replicas=array.most,
        revision=array.revision if array.is_service else 0,
        rollout=array.rollout_state,
        task_cpu_milli=task.cpu_milli,
        task_memory_bytes=task.memory_bytes,
        task_gpu_milli=task.gpu_milli,
    )
