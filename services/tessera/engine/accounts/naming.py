"""Names of the rows in which an account is summed up. Pure."""

from collections.abc import Callable

from tessera.engine.accounts.owners import KEPT, NAMED, USE, GpuCause, GpuOwner

GPU_SECOND = 1_000_000
"""One GPU for one second, in thousandths of a GPU times milliseconds."""
Naming = Callable[[GpuOwner], str]
"""Name of the row in which an amount counts."""
OF_TENANTS = ("user", "project")
"""Names that each tenant gives by itself: two tenants may have the same."""
APART = {GpuCause.OUT: "(out)", GpuCause.OTHERS: "(others)"}
"""Rows of what nobody whom the ledger names has; all other causes of that kind are `(free)`."""


def name_by(field: str) -> Naming:
    """Rows by a field of the owner; what no owner has is free, out or others', of a flavor apart for each."""

    def name(owner: GpuOwner) -> str:
        apart = "" if owner.cause in (*NAMED, *USE) else APART.get(owner.cause, "(free)")
        if field == "flavor":
            return f"{owner.flavor or '-'} {apart}".rstrip()
        if field in OF_TENANTS and not apart:
            return f"{owner.tenant}/{getattr(owner, field) or '-'}"
        return apart or str(getattr(owner, field)) or "-"

    return name


def name_decision(owner: GpuOwner) -> str:
    """
    Rows by cause, with the job that GPUs are kept for, and why each node is out, of an account of `by_decision`.
    """
    if owner.cause in KEPT:
        return f"{owner.cause.value} for {owner.job}"
    return owner.flavor if owner.cause is GpuCause.OUT and owner.flavor else owner.cause.value


def idle_by(field: str) -> Naming:
    """The same with all that is used in one row; by `cause`, the cause."""
    named = name_by(field)

    def name(owner: GpuOwner) -> str:
        if field == "cause":
            return owner.cause.value
        used = owner.cause is GpuCause.USED
        return (f"{owner.flavor or '-'} (used)" if field == "flavor" else "(used)") if used else named(owner)

    return name
