"""The time limit of submitted jobs that say none: the configuration's default, or the longest that is allowed. Pure."""

from tessera.domain.queues import QueueTree
from tessera.domain.work.time_limits import longest_time_limit
from tessera_schemas.job import JobSpec
from tessera_schemas.text.units import format_age


def fill_time_limit(spec: JobSpec, tenant: str, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with a time limit where the configuration has one for it, and what was decided, in words."""
    if spec.time_limit_seconds is not None or tree is None:
        return spec, ()
    default, of = tree.defaults.time_limit_seconds or 0, "defaults.time_limit_seconds"
    longest, field = longest_time_limit(tree, spec.queue, tenant)
    if longest and not 0 < default <= longest:
        default, of = longest, field
    if not default:
        return spec, ()
    note = f"time limit {format_age(default * 1000)}, by {of} of the configuration; say time_limit for another"
    return spec.model_copy(update={"time_limit_seconds": default}), (note,)
