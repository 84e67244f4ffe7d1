"""Stored periods of the account: names within their bound, and what earlier builds stored."""

from tessera.engine.accounts.owners import GpuCause, GpuOwner
from tessera.engine.accounts.periods import OTHERS, Period


def owner(number: int, project: str = "") -> GpuOwner:
    return GpuOwner("default", "", GpuCause.USED, "lab", "queue", f"user-{number}", "", project)


def test_projects_beyond_the_bound_fold_into_others_and_no_amount_is_lost():
    period = Period(0, 0, 0)
    for number in range(10):
        period.put(owner(0, f"project-{number}"), (1, 2, 3), rows_max=3)
    named = [owner(0, f"project-{number}") for number in range(3)]
    others = GpuOwner("default", "", GpuCause.USED, OTHERS, OTHERS, OTHERS, "", OTHERS)
    assert period.rows == {**dict.fromkeys(named, (1, 2, 3)), others: (7, 14, 21)}


def test_a_period_is_read_as_it_was_stored_with_projects_and_without():
    period = Period(0, 0, 300_000, {owner(1): (5, 0, 0), owner(1, "vlm"): (7, 2000, 2**70)})
    assert Period.read(period.stored()) == period


def test_rows_of_no_project_and_of_gpus_alone_are_stored_as_before_there_were_any():
    row = ["default", "", "used", "lab", "queue", "user-1", "", 5]
    assert Period(0, 0, 0, {owner(1): (5, 0, 0)}).stored()["rows"] == [row]
    stored = {"start": 0, "from": 0, "upto": 0, "rows": [row], "restarts": []}
    assert Period.read(stored).rows == {owner(1): (5, 0, 0)}
