"""
Health of machines: one vocabulary of what can be wrong with a node or its devices, and what the scheduler does about
each cause. Sources of health, reports of agents and operators' words all speak it.

docs/health.md shows the table (`python -m docs.make_tables`).
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Lenient, Name, Positive, Strict, later, printable
from tessera_schemas.work.pod_template import Template

REPUTATION = "reputation"
"""The source that the committer itself is, by the jobs that fail on a node."""
DCGM, CONDITIONS, SENTINEL, TAINTS, DEVICES = "dcgm", "conditions", "nvsentinel", "device-taints", "devices"
OPERATOR = "operator"
OWN_SOURCES = (REPUTATION, DCGM, CONDITIONS, SENTINEL, TAINTS, DEVICES, OPERATOR)
"""Sources that Tessera's services and operators speak as; no agent does."""
AILMENTS_MAX = 32
"""So many ailments of a node are taken in from one source; a source that knows more names the gravest."""
NAMED_CHARACTERS = 20  # of an unknown cause: a refusal has 200, and is to have the whole vocabulary


class HealthCause(StrEnum):
    """A fault of a node or of a device of it."""

    GPU_LOST = "gpu_lost"
    GPU_FAULT = "gpu_fault"
    GPU_MEMORY = "gpu_memory"
    GPU_THROTTLED = "gpu_throttled"
    LINK_ERRORS = "link_errors"
    NETWORK = "network"
    DEVICE_TAINTED = "device_tainted"
    DEVICES_MISSING = "devices_missing"
    NODE_CONDITION = "node_condition"
    QUARANTINED = "quarantined"
    DRAIN_ASKED = "drain_asked"
    SLOW = "slow"
    SUSPECTED = "suspected"
    FAILURES = "failures"
    REPORTED = "reported"


class HealthAction(StrEnum):
    """Action on a cause, from the mildest to the gravest."""

    IGNORE = "ignore"
    NOTE = "note"
    DRAIN = "drain"
    EVICT = "evict"
    FENCE = "fence"

    @property
    def rank(self) -> int:
        """Gravity, from 0 for the mildest."""
        return ACTIONS.index(self)

    @property
    def takes_out(self) -> bool:
        """Whether nothing new starts on the node."""
        return self.rank >= HealthAction.DRAIN.rank

    @property
    def stops_runs(self) -> bool:
        """Whether what runs on the node restarts elsewhere."""
        return self.rank >= HealthAction.EVICT.rank


ACTIONS = tuple(HealthAction)
MEANINGS: dict[HealthCause, tuple[str, HealthAction]] = {
    HealthCause.GPU_LOST: ("a GPU does not answer any more (XID 79)", HealthAction.EVICT),
    HealthCause.GPU_FAULT: ("a GPU or its firmware reports an error that needs a reset", HealthAction.DRAIN),
    HealthCause.GPU_MEMORY: ("memory of a GPU is broken: uncorrectable errors, no spare rows", HealthAction.DRAIN),
    HealthCause.GPU_THROTTLED: ("a GPU runs slower than it could, for heat or power", HealthAction.NOTE),
    HealthCause.LINK_ERRORS: ("links between GPUs count errors", HealthAction.DRAIN),
    HealthCause.NETWORK: ("a network card or its link fails", HealthAction.DRAIN),
    HealthCause.DEVICE_TAINTED: ("a driver has put a taint on a device", HealthAction.NOTE),
    HealthCause.DEVICES_MISSING: ("the node offers fewer devices than are installed", HealthAction.NOTE),
    HealthCause.NODE_CONDITION: ("a condition of the node says that it is not well", HealthAction.DRAIN),
    HealthCause.QUARANTINED: ("another controller keeps the node from use", HealthAction.DRAIN),
    HealthCause.DRAIN_ASKED: ("another controller asks for the node to be emptied", HealthAction.EVICT),
    HealthCause.SLOW: ("pods on the node fall behind the others of their runs", HealthAction.NOTE),
    HealthCause.SUSPECTED: ("jobs failed there, and too few to be sure of it", HealthAction.NOTE),
    HealthCause.FAILURES: ("jobs fail there more often than elsewhere", HealthAction.DRAIN),
    HealthCause.REPORTED: ("an agent says so, in words of its own", HealthAction.DRAIN),
}
"""Each cause: what it means, and what is done about it unless the configuration says otherwise."""

DeviceName = Annotated[str, StringConstraints(max_length=128)]
EvidenceText = Annotated[str, StringConstraints(max_length=256)]


def _known(cause: object) -> object:
    if not isinstance(cause, str) or cause not in MEANINGS:
        raise ValueError(f"{str(cause)[:NAMED_CHARACTERS]} is none of {' '.join(MEANINGS)}")
    return cause


class Ailment(Strict):
    """One thing that is wrong with a node now."""

    cause: Annotated[HealthCause, BeforeValidator(_known), Field(description="What is wrong")]
    device: Annotated[DeviceName, Field(description="Device that is meant, as its UUID; empty: the node")] = ""
    evidence: Annotated[EvidenceText, Field(description="What was seen, for people and for the record")] = ""


class ReputationPolicy(Strict):
    """Rules by which nodes are judged for the jobs that fail on them."""

    half_life_seconds: Annotated[
        Positive,
        Field(le=31_536_000, description="Seconds after which half of what speaks against a node counts no more"),
    ] = 604_800
    trial_seconds: Annotated[
        Count,
        Field(
            le=86_400,
            description="Longest time limit of the preemptible jobs of one pod that a suspected node still takes, when "
            "they find no room elsewhere; 0: it takes nothing",
        ),
    ] = 3600


class HealthTest(Strict):
    """The test job that a suspected node gets while its GPUs are free."""

    tenant: Annotated[Name, Field(description="Tenant of the test jobs")]
    queue: Annotated[Name, Field(description="Queue of the test jobs; nodes of its pool are tested")]
    template: Annotated[Template, Field(description="Container of the test: it exits with 0 where the node is good")]
    gpus: Annotated[
        Annotated[Positive, Field(le=64)] | None, Field(description="GPUs of the test; null: all of the node")
    ] = None
    time_limit_seconds: Annotated[
        Positive, Field(le=86_400, description="Seconds after which a test has failed that has not ended")
    ] = 900
    again_seconds: Annotated[
        Positive, Field(le=31_536_000, description="Seconds from the end of a test to the next of the same node")
    ] = 21_600


def find_test_faults(
    test: HealthTest | None, tenants: Collection[str], queues: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Faults of a test in a configuration with these tenants, and queues for jobs, each with its tenants or for all."""
    if test is None:
        return
    if test.tenant not in tenants:
        yield f"health.test.tenant: no such tenant: {test.tenant}"
    if test.queue not in queues:
        yield f"health.test.queue: no such queue that takes jobs: {test.queue}"
    elif queues[test.queue] and test.tenant not in queues[test.queue]:
        yield f"health.test.queue: {test.queue} takes no jobs of {test.tenant}"


def find_fence_faults(actions: Mapping[HealthCause, HealthAction], has_webhook: bool) -> Iterator[str]:
    """Faults of actions that ask for a node to be turned off where nothing is configured that could do it."""
    asked = [] if has_webhook else [cause for cause, action in actions.items() if action is HealthAction.FENCE]
    yield from (f"health.actions.{cause}: fence needs `fencing`, the webhook that turns nodes off" for cause in asked)


class HealthPolicy(Strict):
    """Care for sick machines, and for how many at once."""

    actions: Annotated[
        dict[HealthCause, HealthAction],
        Field(
            max_length=len(HealthCause),
            description="Action by cause, where it is not the usual one. ignore: nothing is recorded. note: it is "
            "shown. drain: nothing new starts on the node. evict: what runs there also restarts elsewhere, after its "
            "checkpoint notice. fence: then the webhook of `fencing` turns the node off",
        ),
    ] = Field(default_factory=dict)
    out_percent: Annotated[
        Positive,
        Field(
            le=100,
            description="Percentage of a pool's nodes that are kept out for their health at once, and one at least; "
            "what else is sick is shown and goes on",
        ),
    ] = 10

    reputation: Annotated[
        ReputationPolicy | None,
        Field(description="Judgement of nodes by the jobs that fail on them; null: nothing is counted"),
    ] = later(None)
    test: Annotated[
        HealthTest | None, Field(description="Test job for nodes that are suspected; null: none is run")
    ] = later(None)

    @model_validator(mode="after")
    def _tests_suspects(self) -> Self:
        if self.test is not None and self.reputation is None:
            raise ValueError("test: needs reputation beside it, by which nodes are suspected")
        return self

    def action_for(self, cause: HealthCause) -> HealthAction:
        """Action on a cause."""
        return self.actions.get(cause, MEANINGS[cause][1])


def _another(source: str) -> str:
    if source == REPUTATION:
        raise ValueError(f"{REPUTATION} is the scheduler itself, by jobs that fail; take another name")
    return source


def _an_agents(source: str) -> str:
    if source in OWN_SOURCES:
        raise ValueError(f"{', '.join(OWN_SOURCES)} are Tessera's own; take another name")
    return source


def _in_print(ailments: tuple[Ailment, ...]) -> tuple[Ailment, ...]:
    for ailment in ailments:
        printable(ailment.device + ailment.evidence)
    return ailments


Source = Annotated[
    Name, AfterValidator(_another), Field(description="Who says so; each source speaks for itself alone")
]
AgentSource = Annotated[Name, AfterValidator(_an_agents)]
"""Name of an agent, as which no service of Tessera speaks."""
Ailments = Annotated[
    tuple[Ailment, ...],
    Field(max_length=AILMENTS_MAX, description="All that the source sees of the node now; empty: it is well"),
]
ReportedAilments = Annotated[Ailments, AfterValidator(_in_print)]
"""Ailments that a command says; stored ones may be older than this rule."""


class KnownAilment(Strict):
    """An ailment, the source that sees it, and since when, by the ledger's time."""

    source: Name
    ailment: Ailment
    since_ts: int


class PublicAilment(Lenient):
    """An ailment as readers of events see it: a cause that they do not know yet is still a cause."""

    cause: Annotated[str, Field(description="What is wrong")]
    device: Annotated[str, Field(description="Device that is meant, as its UUID; empty: the node")] = ""
    evidence: Annotated[str, Field(description="What was seen")] = ""


class PublicKnownAilment(Lenient):
    """An ailment with the source that sees it, and since when."""

    source: str
    ailment: PublicAilment
    since_ts: Annotated[int, Field(description="Milliseconds since the Unix epoch")]
