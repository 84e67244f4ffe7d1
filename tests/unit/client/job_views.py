"""Rows of the views for tests of the command."""

from tessera_schemas.views import JobView


def named(letter: str, phase: str, name: str = "train", submitted_ts: int = 1) -> JobView:
    """A job of this name whose id is the letter, twenty times."""
    return JobView(
        job_id=letter * 20,
        tenant="lab",
        key=letter,
        name=name,
        queue="default",
        phase=phase,
        priority=0,
        attempt=1,
        pods=1,
        gpu_milli=1000,
        submitted_ts=submitted_ts,
    )
