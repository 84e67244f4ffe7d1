"""The fold's part about devices that drivers publish (DRA): layouts, classes, and what selectors take of them. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tessera.domain.devices.claims import weighed
from tessera.domain.devices.networks import DrawnOn, knowing, list_drawn
from tessera.domain.devices.offers import (
    DeviceClass,
    KnownLayout,
    KnownSelection,
    Networks,
    Offer,
    Selection,
    selection_key,
)
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.entities import Job
from tessera.domain.errors import Contradiction
from tessera.domain.folding.steps import applies, tally_tenant
from tessera.domain.mix import PODS_COUNTED, ClaimedPieces, see_pieces
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.domain.work.phases import Phase
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import selectors_digest
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.ledger import DevicesNoted, TakenFact

UNUSED_MAX = 64
"""Layouts that no node names are kept up to so many: their nodes may be on their way, or back in a moment."""


@applies(DevicesNoted)
def apply_devices_noted(state: State, record: DevicesNoted, facts: Sequence[TakenFact]) -> None:
    """Takes in a layout, a class, or what expressions take; nodes offer their devices by it from here on."""
    fact = facts[record.fact].fact
    if isinstance(fact, LayoutSeen):
        digest = fact.layout.digest()
        state.layouts.put(digest, KnownLayout(digest, fact.layout))
        offer_anew(state, (digest,))
        _forget_unused(state, digest)
    elif isinstance(fact, ClassSeen):
        if fact.gone:
            state.device_classes.drop(fact.name)
        else:
            known = DeviceClass(fact.name, fact.selectors, fact.extended_resource)
            state.device_classes.put(fact.name, known)
        offer_anew(state, tuple(digest for digest, _ in state.layouts.items()))
    elif isinstance(fact, DevicesSelected):
        key = selection_key(fact.layout, fact.selectors)
        state.selections.put(key, KnownSelection(key, fact.devices, fact.error))
        offer_anew(state, (fact.layout,))
    else:
        raise Contradiction(f"record {state.n}: fact {record.fact} is not about devices")
    _weigh_jobs(state)


def weigh_claims(state: State, gang: Gang) -> Gang:
    """The gang, whose claims count against quotas of GPUs as the devices that are known by now."""
    if not gang.claims:
        return gang
    offers = [offer for _, offer in sorted(state.offers.items())]
    needs = (replace(role.need, claims=weighed(role.need.claims, offers)) for role in gang)
    return gang_of(tuple(replace(role, need=need) for role, need in zip(gang, needs, strict=True)))


def _weigh_jobs(state: State) -> None:
    """Counts what jobs in line claim by what is known now; a run keeps what it counted for when it began."""
    for job in state.claiming_jobs():
        if job.phase is Phase.QUEUED:
            weigh_job(state, job)


def weigh_job(state: State, job: Job) -> None:
    """Counts what a job in line claims by what is known now."""
    gang = weigh_claims(state, job.gang)
    if gang is not job.gang:
        amount = gang.amount if job.array is None else job.amount
        tally_tenant(state, job, job.amount, -1)
        state.put_job(replace(job, roles=gang, amount=amount))
        tally_tenant(state, job, amount, 1)


def offer_anew(state: State, layouts: Sequence[str]) -> None:
    """Makes the offers of these layouts anew, and gives them to their nodes."""
    made = {digest: _make_offer(state, digest) for digest in layouts if state.layouts.get(digest) is not None}
    for digest, offer in made.items():
        state.offers.put(digest, offer)
    drawn: dict[Networks, list[DrawnOn]] = {}
    for node in list(state.nodes.values()):
        known = None if node.offer is None else made.get(node.offer.digest)
        if known is None:
            continue
        # Nodes of one network have one answer: asked for each, a thousand nodes would each look at a thousand.
        if known.networks not in drawn:
            drawn[known.networks] = list_drawn(state.nodes.values(), known.networks) if known.networks else []
        state.put_node(knowing(node.offering(known), drawn[known.networks]))


def restore_offers(state: State) -> None:
    """After a restore: the offers again from the tables."""
    offer_anew(state, tuple(digest for digest, _ in state.layouts.items()))


def with_offer(state: State, node: Node) -> Node:
    """The node with what is known of the layout that it names, and of what jobs of its pool claim."""
    if node.offer is None:
        return node
    known, mix = state.offers.get(node.offer.digest), state.mixes.get(node.pool)
    offering = node if known is None else node.offering(known)
    return replace(offering, pieces=mix.pieces) if mix is not None and mix.pieces else offering


def see_claims(state: State, pool: str, gang: Gang) -> None:
    """Counts what pods of a job that came into the pool claim of GPUs, and tells the pool's nodes what is usual now."""
    before = state.mixes.get(pool)
    is_cut = before is not None and bool(before.claimed)
    if not (gang.claims or is_cut):
        return
    asked, pods = Counter[str](), 0
    for role in gang:
        counted, found = min(role.replicas, PODS_COUNTED), list(_pieces(state, role.need, is_cut))
        for piece, milli in found:
            asked[piece] += milli * counted
        pods += counted if found else 0
    see_pieces(state.mixes, pool, asked, pods)
    now = state.mixes.get(pool)
    if now is not None and now.pieces and (before is None or now.pieces != before.pieces):
        _tell_pieces(state, pool, now.pieces)


def _pieces(state: State, need: Need, is_cut: bool) -> Iterator[tuple[str, int]]:
    """Each piece of GPUs that a pod asks for, by its first choices, and its thousandths of GPUs in all."""
    for choice in (request.choices[0] for claim in need.claims for request in claim.requests):
        known = state.device_classes.get(choice.device_class)
        # Every device of a kind, and what is looked after only, is no piece that a GPU could be cut for.
        if known is not None and choice.gpu_milli and choice.count and not choice.admin:
            yield selectors_digest(known.selectors + choice.selectors), choice.gpu_milli * choice.count
    # Whole GPUs by their number count where others claim: in a pool without claims nothing is learnt of them here.
    if need.gpus and is_cut:
        classes = (each for _, each in sorted(state.device_classes.items()))
        known = next((each for each in classes if each.extended_resource == GPU_RESOURCE), None)
        if known is not None:
            yield selectors_digest(known.selectors), need.gpus * WHOLE_GPU


def _tell_pieces(state: State, pool: str, pieces: ClaimedPieces) -> None:
    for node in list(state.nodes.values()):
        if node.pool == pool and node.offer is not None and node.pieces != pieces:
            state.put_node(replace(node, pieces=pieces))


def with_drawn_elsewhere(state: State, node: Node) -> Node:
    """The node with what pods on other nodes have of the networks that reach it now."""
    networks = frozenset() if node.offer is None else node.offer.networks
    return knowing(node, list_drawn(state.nodes.values(), networks) if networks else ())


def _make_offer(state: State, digest: str) -> Offer:
    known = state.layouts.get(digest)
    selections = {
        key.partition(" ")[2]: Selection(int(row.devices, 16), row.error)
        for key, row in state.selections.items()
        if key.startswith(digest)
    }
    return Offer(digest, None if known is None else known.layout, dict(state.device_classes.items()), selections)


def _forget_unused(state: State, newest: str) -> None:
    """Forgets layouts that no node names, beyond some; by digest, since tables have no order that lasts."""
    used = {node.offer.digest for node in state.nodes.values() if node.offer is not None} | {newest}
    unused = sorted(digest for digest, _ in state.layouts.items() if digest not in used)
    for digest in unused[UNUSED_MAX:]:
        state.layouts.drop(digest)
        state.offers.drop(digest)
        for key in [key for key, _ in state.selections.items() if key.startswith(digest)]:
            state.selections.drop(key)
