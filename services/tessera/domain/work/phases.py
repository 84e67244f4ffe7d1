"""
The phases of a job and the only moves between them.

The diagram in docs/phases.md is made from this table: `python -m tessera.domain.work.phases > docs/phases.md`.
"""

from enum import StrEnum

from tessera.domain.errors import IllegalMove


class Phase(StrEnum):
    """Phase of a job. A refused submit never becomes a job and has no phase."""

    QUEUED = "queued"
    ALLOCATED = "allocated"
    BINDING = "binding"
    RUNNING = "running"
    EVICTING = "evicting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LEGAL: dict[Phase, frozenset[Phase]] = {
    # To an end that is not a cancel: an array, which has no run of its own, when the last of its tasks has ended, and
    # adopted work, whose owner has ended after its last run.
    Phase.QUEUED: frozenset({Phase.ALLOCATED, Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED}),
    Phase.ALLOCATED: frozenset({Phase.BINDING, Phase.EVICTING}),
    Phase.BINDING: frozenset({Phase.RUNNING, Phase.EVICTING}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.EVICTING}),
    # Running again: nothing of it had been stopped. Succeeded: its program ended before anything of it was stopped.
    # Anything else: only once the run's absence is confirmed.
    Phase.EVICTING: frozenset({Phase.RUNNING, Phase.QUEUED, Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
}

TERMINAL = frozenset(phase for phase, nexts in LEGAL.items() if not nexts)


def moved(job_id: str, now: Phase, to: Phase) -> Phase:
    """`to`, if the table allows it; raises IllegalMove otherwise."""
    if to not in LEGAL[now]:
        raise IllegalMove(f"job {job_id}: {now.value} -> {to.value} is not a legal move")
    return to


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    for phase in Phase:
        lines += [f"    {phase.value} --> {to.value}" for to in Phase if to in LEGAL[phase]]
        if phase in TERMINAL:
            lines.append(f"    {phase.value} --> [*]")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/phases.md: the diagram, and how to make it again."""
    return (
        "# Phases of a job\n\nMade from `tessera.domain.work.phases` by "
        "`python -m tessera.domain.work.phases > docs/phases.md`; never edited.\n\n"
        f"```mermaid\n{diagram()}```\n"
    )


if __name__ == "__main__":
    print(page(), end="")
