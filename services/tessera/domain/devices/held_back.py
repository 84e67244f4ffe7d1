"""GPUs of a pool that can be had and stand idle, by the rule that keeps who waits from them, with the way out."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum


class HoldsBack(StrEnum):
    """Why GPUs that can be had are idle; each GPU counts once, under the first rule in this order that holds it."""

    KEPT = "kept"  # for a job before, from when on runs end
    OWNER = "owner"  # for an owner that waits within its nominal quota
    QUOTA = "quota"
    STOPPED = "stopped"
    STRICT = "strict_fifo"
    TURN = "turn"  # the next decisions start who may have them
    PIECES = "pieces"  # who waits needs more at once, or other nodes
    ABANDONED = "abandoned"  # all that waits lost its queue or tenant
    NOTHING_WAITS = "nothing_waits"


WORDS: dict[HoldsBack, tuple[str, str]] = {
    HoldsBack.KEPT: ("kept ahead for {job}", "jobs whose time limit ends before it starts may have them"),
    HoldsBack.OWNER: ("{queue} would borrow what an owner waits for", "the owner's start, or more quota for {queue}"),
    HoldsBack.QUOTA: ("the quota of {queue} is used up", "more nominal quota for it, or a higher borrowing limit"),
    HoldsBack.STOPPED: ("{queue} is stopped", "`tessera queue release`"),
    HoldsBack.STRICT: ("nobody passes {job} in {queue}", "queueing_strategy: best_effort_fifo"),
    HoldsBack.TURN: ("{job} waits for its turn", ""),
    HoldsBack.PIECES: ("{job} needs more at once", "fewer GPUs per pod or fewer pods; `tessera explain` tries it"),
    HoldsBack.ABANDONED: ("what waits has lost its queue or tenant", "`tessera queue move`"),
    HoldsBack.NOTHING_WAITS: ("nothing waits for them", ""),
}
"""Words for people, and the change after which the GPUs would be used."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """
    So many thousandths of GPUs are idle by the rule. `queue` is whose jobs it holds back, `job_id`, `name` and
    `tenant` those of the job that they wait behind, or of the first that waits; "" where the rule has none.
    """

    rule: HoldsBack
    gpu_milli: int
    queue: str = ""
    job_id: str = ""
    name: str = ""
    tenant: str = ""

    def seen_by(self, tenant: str | None, queues: Collection[str]) -> "HeldBack":
        """The same with the names that `tenant` may see, its own jobs and these queues; None, an operator, sees all."""
        if tenant is None:
            return self
        queue = self.queue if self.queue in queues else ""
        return replace(self, queue=queue) if tenant == self.tenant else HeldBack(self.rule, self.gpu_milli, queue)

    def describe(self) -> str:
        """The rule, and the change that would use the GPUs; names that are left out are not said."""
        why, change = (
            text.format(
                job=f"{self.name} ({self.job_id})" if self.job_id else "another job",
                queue=f"queue {self.queue}" if self.queue else "another queue",
            )
            for text in WORDS[self.rule]
        )
        return f"{why} (way out: {change})" if change else why
