"""
Draws devices of a node for the claims of a pod, all or none.

The draw has the meaning of Kubernetes' allocator, which takes the first solution that it meets; here the choices of
`firstAvailable` are the earliest that any solution has, request by request, and devices those that cost others least.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed, RequestNeed
from tessera.domain.devices.offers import Offer
from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import fast_init
from tessera.engine.claims.shortages import Shortage
from tessera.engine.claims.solving import Solution, Solver
from tessera_schemas.work.placement import DrawnDevice

NO_OFFER = Offer("")
PODS_TOGETHER_MAX = 4
"""Equal pods of one node that are counted by drawing for all of them at once."""
NODES_KEPT_MAX = 65_536


@dataclass(frozen=True)
class FreeOffer:
    """
    An offer with what hinders draws from it now; equal for nodes in equal states.

    `tainted` has index, key, value and effect, and `taken` the index of each device that a claim has, with its part
    where it is shared; both in order. `incomplete`: pools of the node cannot be read. `pieces` are as of
    `Node`.
    """

    offer: Offer
    tainted: tuple[tuple[int, str, str, str], ...] = ()
    taken: tuple[tuple[int, tuple[tuple[str, int], ...]], ...] = ()
    incomplete: bool = False
    pieces: tuple[tuple[str, ...], ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Kept, since each answer that is remembered is looked up by it, for each node of a park.
        return hash((self.offer, self.tainted, self.taken, self.incomplete, self.pieces))

    @cached_property
    def untaken(self) -> "FreeOffer":
        """The offer with nothing taken, its taints standing."""
        return replace(self, taken=())


@fast_init
@dataclass(frozen=True, slots=True)
class Drawn:
    """
    A device for a claim. `request` is "request/choice" where there were choices, `capacity` the part of the device
    where it is shared; `admin` takes nothing of it.
    """

    claim: str
    request: str
    index: int
    capacity: tuple[tuple[str, int], ...] = ()
    admin: bool = False


_free_of: dict[str, tuple[Node, FreeOffer]] = {}
"""By name, of each node as it was last asked about: asked again of the very same node, nothing is compared."""
_free_beside: dict[tuple[int, ...], tuple[object, FreeOffer]] = {}
"""By the identities of what it follows from."""


def free_devices(node: Node) -> FreeOffer:
    """The offer of a node and what hinders draws; devices that the offer does not have are left out."""
    known = _free_of.get(node.name)
    if known is not None and known[0] is node:
        return known[1]
    if len(_free_of) >= NODES_KEPT_MAX:
        _free_of.clear()
    found = _free(node) if node.drawn or node.drawn_by_others or node.tainted else _free_of_networks(node)
    _free_of[node.name] = node, found
    return found


def _free_of_networks(node: Node) -> FreeOffer:
    """
    The same of a node of which only devices of networks are had.

    All nodes that a start elsewhere reaches have the very same tuple of what is had there (`spreading`), and no device
    of a network is called by its node. So one answer serves them all, and is found without comparing anything.
    """
    of = node.offer, node.drawn_elsewhere, node.missing, node.pieces
    known = _free_beside.get(key := tuple(map(id, of)))
    if known is None:
        if len(_free_beside) >= NODES_KEPT_MAX:
            _free_beside.clear()
        # What was asked about stands beside the answer: so no other object gets its identity meanwhile.
        known = _free_beside[key] = of, _free(node)
    return known[1]


def _free(node: Node) -> FreeOffer:
    offer = node.offer or NO_OFFER
    # By places and not by names: names have the node in them, and nodes in equal states would each be searched anew.
    taints = ((offer.find(device, node.name), key, value, effect) for device, key, value, effect in node.tainted)
    had = ((offer.find(device, node.name), part) for device, part in node.drawn_in_all)
    return FreeOffer(
        offer,
        tuple(sorted((at, key, value, effect) for at, key, value, effect in taints if at is not None)),
        tuple(sorted((at, part) for at, part in had if at is not None)),
        bool(node.missing),
        node.pieces,
    )


def named(drawn: tuple[Drawn, ...], offer: Offer, node: str) -> tuple[DrawnDevice, ...]:
    """Drawn devices by the names that their drivers give them on a node of that name."""
    devices = offer.devices
    return tuple(
        DrawnDevice(
            each.claim,
            each.request,
            devices[each.index].driver,
            devices[each.index].pool or node,
            devices[each.index].name,
            each.capacity,
            each.admin,
        )
        for each in drawn
    )


@lru_cache(maxsize=8_192)
def draw(devices: FreeOffer, claims: tuple[ClaimNeed, ...]) -> tuple[Drawn, ...] | Shortage:
    """Devices for each request of each claim, in their order, or why there are none."""
    solver = _solver(devices, claims)
    found = solver.solve(solver.start(devices.taken))
    # Kept by value for equal nodes and claims, refusals too: a line of equal jobs asks the same of each node.
    return found if isinstance(found, Shortage) else _drawn(solver, found)


@lru_cache(maxsize=8_192)
def describe_again(devices: FreeOffer, claims: tuple[ClaimNeed, ...], short: Shortage) -> Shortage:
    """The evidence about the same choice of the same request of these claims, with what is taken of these devices."""
    solver = _solver(devices, claims)
    return solver.describe_again(solver.start(devices.taken), short)


@lru_cache(maxsize=8_192)
def count_sets(devices: FreeOffer, claims: tuple[ClaimNeed, ...], most: int) -> int:
    """
    Number of pods with these claims that the node takes; at most `most`.

    They are drawn one after the other, and where that leaves few all at once: what is best for the first may be all
    that others could have.
    """
    # The solver is kept from pod to pod: what was found out of devices and claims holds, and only states change.
    solver = _solver(devices, claims)
    found = solver.solve(solver.start(devices.taken))
    if isinstance(found, Shortage) or not most:
        return 0
    # Whoever looks after devices takes nothing of them, so that there is no end to how many may.
    if all(choice.admin for claim in claims for request in claim.requests for choice in request.choices):
        return most
    states = found.states
    for count in range(1, most):
        found = solver.solve(states)
        if isinstance(found, Shortage):
            return _count_together(devices, claims, count, most)
        states = found.states
    return most


def _count_together(devices: FreeOffer, claims: tuple[ClaimNeed, ...], count: int, most: int) -> int:
    solver = _solver(devices, claims)
    states = solver.start(devices.taken)
    # Few pods, since a draw for all of them costs as many times one for a pod; and none where devices lack in number.
    while count < min(most, PODS_TOGETHER_MAX) and solver.has_devices(states, count + 1):
        if isinstance(draw_together(devices, (claims,) * (count + 1)), Shortage):
            break
        count += 1
    return count


def draw_together(
    devices: FreeOffer, pods: tuple[tuple[ClaimNeed, ...], ...]
) -> tuple[tuple[Drawn, ...], ...] | Shortage:
    """Devices for each of several pods of the node, drawn at once; for claims of which each pod has its own."""
    found = draw(devices, as_of_one_pod(pods))
    if isinstance(found, Shortage):
        return found
    of_pod = by_pod(found)
    return tuple(tuple(of_pod.get(number, ())) for number in range(len(pods)))


def as_of_one_pod(pods: Iterable[tuple[ClaimNeed, ...]]) -> tuple[ClaimNeed, ...]:
    """The claims of several pods as if one pod had them all: the names begin with the pod's number."""
    numbered = enumerate(pods)
    return tuple(replace(claim, name=f"{number}/{claim.name}") for number, claims in numbered for claim in claims)


def by_pod(drawn: Iterable[Drawn]) -> dict[int, list[Drawn]]:
    """Devices drawn for such claims, by the pod's number, under the names that the pod has for them."""
    found = dict[int, list[Drawn]]()
    for each in drawn:
        number, _, claim = each.claim.partition("/")
        found.setdefault(int(number), []).append(replace(each, claim=claim))
    return found


def is_answer(devices: FreeOffer, claims: tuple[ClaimNeed, ...], drawn: tuple[Drawn, ...]) -> bool:
    """Whether each request may have the devices that are drawn for it here, whoever drew them."""
    # Those that were not drawn are kept from the requests, but not taken: what is taken draws on counters.
    solver = _solver(devices, claims)
    for at, (claim, request) in enumerate(solver.asked):
        names = {_name(request, choice): number for number, choice in enumerate(request.choices)}
        kept = dict[int, int]()
        for each in drawn:
            if each.claim == claim.name and each.request in names:
                number = names[each.request]
                kept[number] = kept.get(number, 0) | 1 << each.index
        solver.keep(at, kept)
    found = solver.solve(solver.start(devices.taken))
    return not isinstance(found, Shortage) and Counter(_drawn(solver, found)) == Counter(drawn)


def why_never(devices: FreeOffer, claims: tuple[ClaimNeed, ...]) -> Shortage | None:
    """
    Why the devices could not answer the claims whatever claims give back; None where they might.

    Taints stay, since whoever tainted a device takes the taint off, and no departure does. A search that was given up
    proves nothing.
    """
    found = draw(devices.untaken, claims)
    if not isinstance(found, Shortage) or found.gave_up:
        return None
    # Every device that matches is asked for, and shared ones of which too little is left do not count among them: then
    # a node that others use may answer what an empty one does not.
    choices = (choice for claim in claims for request in claim.requests for choice in request.choices)
    if any(not choice.count for choice in choices) and any(
        device.is_shared and device.capacity for device in devices.offer.devices
    ):
        return None
    return found


def _solver(devices: FreeOffer, claims: tuple[ClaimNeed, ...]) -> Solver:
    return Solver(devices.offer, devices.tainted, devices.incomplete, claims, devices.pieces)


def _drawn(solver: Solver, solution: Solution) -> tuple[Drawn, ...]:
    """In the order of requests, the devices of each in the order of the offer."""
    devices, found = solver.offer.devices, []
    for pick in sorted(solution.picks, key=lambda pick: (solver.order[pick.at], pick.device)):
        claim, request = solver.asked[pick.at]
        choice, capacity = request.choices[pick.choice], devices[pick.device].capacity
        part = () if pick.amounts is None else tuple(zip(sorted(capacity), pick.amounts, strict=True))
        found.append(Drawn(claim.name, _name(request, choice), pick.device, part, choice.admin))
    return tuple(found)


def _name(request: RequestNeed, choice: ChoiceNeed) -> str:
    return f"{request.name}/{choice.name}" if choice.name else request.name
