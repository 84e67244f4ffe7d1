"""Limits that count what a tenant has: judged here and not in admission, whose replicas race."""

from tessera.domain.devices.resources import Amount
from tessera.domain.entities import Use
from tessera.domain.state import State
from tessera_schemas.reasons import Code, Reason

COUNTABLE = 2**62  # sums of a tenant's jobs; the canonical form of the state holds no integer above 64 bits


def over_limit(state: State, tenant_name: str, wanted: Amount) -> Reason | None:
    """Why the tenant may not have one more job of this amount; None if it may."""
    use = state.tenant_use.get(tenant_name) or Use(tenant_name)
    for name in ("cpu_milli", "memory_bytes"):
        if getattr(use.amount, name) + getattr(wanted, name) > COUNTABLE:
            return Reason(code=Code.LIMIT_EXCEEDED, field=name, detail="more than can be counted")
    tenant = state.tree.tenants.get(tenant_name)
    if tenant is None:
        return None
    limits, jobs, gpu_milli = tenant.limits, use.jobs, use.amount.gpu_milli
    if limits.jobs is not None and jobs + 1 > limits.jobs:
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.jobs", numbers={"jobs": jobs, "limit": limits.jobs})
    if limits.gpus is not None and wanted.gpu_milli and gpu_milli + wanted.gpu_milli > limits.gpus * 1000:
        numbers = {
            "gpu_milli": gpu_milli,
            "wanted_gpu_milli": wanted.gpu_milli,
            "limit_gpu_milli": limits.gpus * 1000,
        }
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
    return None


def over_limit_alone(state: State, tenant_name: str, wanted: Amount) -> Reason | None:
    """Why the tenant could not have a job of this amount even without any other."""
    tenant = state.tree.tenants.get(tenant_name)
    limit = None if tenant is None else tenant.limits.gpus
    if limit is None or wanted.gpu_milli <= limit * 1000:
        return None
    numbers = {"wanted_gpu_milli": wanted.gpu_milli, "limit_gpu_milli": limit * 1000}
    return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
