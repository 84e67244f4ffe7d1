"""
Offers of moves: what the policy says of them, how a job answers, and the records of each.

A move stops a run here and starts it there, so that a job that waits finds its room in one piece. With this policy
a run is asked first; it moves if it agrees, or saves its work, or says nothing where silence means that it moves.
"""

from typing import Annotated, Literal

from pydantic import Field

from tessera_schemas import events
from tessera_schemas.base import Count, JobId, Millis, RunId, Strict
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.lending import LENDING_HOURS_MAX, WeekHours
from tessera_schemas.shard.records import AnyFact, AnyRecord
from tessera_schemas.work.tenant_shares import YEAR_SECONDS


class Moves(Strict):
    """Rules of moves that make room in one piece for a job that waits."""

    silence: Annotated[
        Literal["move", "stay"], Field(description="What a run does of which no answer comes in time")
    ] = "move"
    veto_seconds: Annotated[
        Count, Field(le=YEAR_SECONDS, description="Seconds for which a run that stays is not asked again, by any job")
    ] = 3600
    windows: Annotated[
        tuple[WeekHours, ...],
        Field(max_length=LENDING_HOURS_MAX, description="Hours in which runs are asked, or moved unasked; empty: any"),
    ] = ()
    per_tenant_week: Annotated[
        Count | None, Field(description="Number of runs of one tenant that move in a week from Monday, UTC; null: any")
    ] = None
    lost_gpu_seconds_per_tenant_week: Annotated[
        Count | None, Field(description="GPU time that the moved runs of one tenant may lose in a week; null: any")
    ] = None

    @property
    def has_budget(self) -> bool:
        """Whether it counts what moves cost a tenant."""
        return self.per_tenant_week is not None or self.lost_gpu_seconds_per_tenant_week is not None


HowAnswered = Literal["accepted", "checkpoint", "vetoed", "silence"]


class MoveReplied(AnyFact, sender="admission"):
    """The job's tenant says whether its run moves, as it was asked; `attempt` 0 is the run that there is."""

    kind: Literal["move_replied"]
    job_id: JobId
    accept: bool
    tenant: str = ""
    attempt: Count = 0


class MoveOffered(
    AnyRecord,
    event=events.JobMoveOfferedV1,
    story="is asked to move, so that a job that waits finds its room; now it would lose {lost_gpu_seconds} GPU seconds",
):
    """
    A run is asked to move, so that job `by` finds its room: it answers by `deadline`, or its silence counts.

    `net_gpu_seconds` is what all moves of that plan gain together beyond what they lose, and `lost_gpu_seconds` is what
    this run would lose now.
    """

    kind: Literal["move_offered"]
    run_id: RunId
    by: JobId
    deadline: Millis
    net_gpu_seconds: Count = 0
    lost_gpu_seconds: Count = 0


class MoveAnswered(AnyRecord, event=events.JobMoveAnsweredV1, story="whether it moves is answered: {how}"):
    """The run was asked to move and moves, or stays; `silence`: it said nothing in time, and the policy decides."""

    kind: Literal["move_answered"]
    run_id: RunId
    how: HowAnswered
    moves: bool = False


class MoveWithdrawn(AnyRecord, event=events.JobMoveWithdrawnV1, story="need not move any more: {reason}"):
    """The run need not move any more; the reason says why."""

    kind: Literal["move_withdrawn"]
    run_id: RunId
    reason: Reason


class MoveScored(
    AnyRecord,
    event=events.JobMoveScoredV1,
    story="its room came by moves: {gained_gpu_seconds} GPU seconds gained of {predicted_gain_gpu_seconds} foretold, "
    "{lost_gpu_seconds} lost of {predicted_lost_gpu_seconds}",
):
    """
    What moves for a job were to gain and to lose, and what they have, now that it has started, or has gone.

    Gained is the time that it was to wait without them, less what it waited since they were begun. Lost is what the
    moved runs had not saved when they stopped, and their time until they ran again, or until now.
    """

    kind: Literal["move_scored"]
    job_id: JobId
    predicted_gain_gpu_seconds: Count = 0
    predicted_lost_gpu_seconds: Count = 0
    gained_gpu_seconds: Count = 0
    lost_gpu_seconds: Count = 0
