"""
Health of each node that is not well, as far as it is known, and what the configuration asks for.

What is wrong comes from several sources, each of which speaks for itself alone. Keeping the node out is a drain like an
operator's, with another name on it (`Drain.by`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.storing.later import later
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS
from tessera_schemas.cluster.health import Ailment, HealthAction, HealthCause, HealthPolicy, KnownAilment

KNOWN_MAX = 256
"""Ailments of a node that are kept, the gravest first."""


@fast_init
@dataclass(frozen=True, slots=True)
class NodeHealth:
    """
    A node that is not well since `since_ts`, a ledger time.

    `overruled`: an operator has said that it is good, until all of this is over. `held_back`: it would be kept out, and
    is not, since too many nodes of its pool are. `fenced`: the webhook was asked to turn it off, which it is once until
    all of this is over.
    """

    node: str
    since_ts: int
    ailments: tuple[KnownAilment, ...]
    overruled: bool = False
    held_back: bool = False
    fenced: bool = later(False)

    @property
    def is_suspected(self) -> bool:
        """Whether jobs failed there, and nothing but a trial goes there until more is known."""
        return not self.overruled and any(each.ailment.cause is HealthCause.SUSPECTED for each in self.ailments)

    def gravest(self, policy: HealthPolicy) -> KnownAilment:
        """The ailment that asks for the most; of several, the one that was known first."""
        return min(self.ailments, key=lambda known: (-policy.action_for(known.ailment.cause).rank, *_place(known)))

    def wanted(self, policy: HealthPolicy) -> HealthAction:
        """Action on the node, were it the only one."""
        action = policy.action_for(self.gravest(policy).ailment.cause)
        return HealthAction.NOTE if self.overruled and action.takes_out else action


def _place(known: KnownAilment) -> tuple[int, str, str, str]:
    return known.since_ts, known.source, known.ailment.cause, known.ailment.device


def describe(known: KnownAilment) -> str:
    """An ailment in a few words, with its evidence."""
    ailment = known.ailment
    where = f" {ailment.device}" if ailment.device else ""
    return f"{ailment.cause}{where} ({known.source}){': ' + ailment.evidence if ailment.evidence else ''}"


def with_word(
    before: NodeHealth | None, source: str, said: Sequence[Ailment], policy: HealthPolicy, ts: int
) -> tuple[KnownAilment, ...]:
    """
    All that is wrong with a node once `source` has said this, in place of what it said before.

    What it said before goes on since then, though its evidence may be another; what the policy ignores is not kept.
    """
    known = () if before is None else before.ailments
    since = {(each.ailment.cause, each.ailment.device): each.since_ts for each in known if each.source == source}
    evident = {(each.cause, each.device): each for each in said if policy.action_for(each.cause) != HealthAction.IGNORE}
    mine = [
        KnownAilment(source=source, ailment=ailment, since_ts=since.get(key, ts)) for key, ailment in evident.items()
    ]
    all_known = [*(each for each in known if each.source != source), *mine]
    all_known.sort(key=lambda each: (-policy.action_for(each.ailment.cause).rank, *_place(each)))
    return tuple(sorted(all_known[:KNOWN_MAX], key=_place))


def with_sick_slots(node: Node, known: NodeHealth | None) -> Node:
    """
    The node as its health says which of its cards are sick, where a slot is one certain card.

    That jobs failed with a card only makes it suspect: what is tried on the node is to tell whether it is the card.
    """
    names = node.gpu_uuids if node.device_profile in NAMES_ITS_CARDS else ()
    ailments = [] if known is None or known.overruled else [each.ailment for each in known.ailments]
    sick = {ailment.device for ailment in ailments if ailment.cause is not HealthCause.SUSPECTED}
    slots = tuple(slot for slot, uuid in enumerate(names) if uuid in sick)
    return node if slots == node.sick_slots else replace(node, sick_slots=slots)


@fast_init
@dataclass(frozen=True, slots=True)
class Fence:
    """
    The last request to turn a node of `pool` off; `outcome` is "" while it is open, else as in the record of its end.

    `by` is the operator who asked, "" where nobody had to; `cause` the ailment for which the node's health asks for it,
    "" for one that does not answer. `back_ts` is since when, after that, the node has answered again or its object is
    gone, 0 while neither: until then nothing asks a second time by itself.
    """

    node: str
    pool: str
    request: str
    asked_ts: int
    why: str
    by: str = ""
    outcome: str = ""
    detail: str = ""
    ended_ts: int = 0
    back_ts: int = 0
    cause: str = later("")


def may_ask_again(fence: Fence) -> bool:
    """Whether another request for the node may follow: none that is open, or has put it out of service, stands."""
    return bool(fence.back_ts) or fence.outcome in ("failed", "undone")


def may_end(fence: Fence, outcome: str) -> bool:
    """Whether the request may end so: an operator takes back also what was confirmed, until the node is back."""
    return not fence.outcome or (outcome == "undone" and fence.outcome == "off" and not fence.back_ts)
