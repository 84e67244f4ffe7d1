"""
Search for devices that answer all claims of a pod on one node.

Its meaning is simple: try every device for every request, and the choices of a request in their order. Two shortcuts
change nothing of what is found. Islands of one make, state and use for these claims are interchangeable, so that a
device is tried on the first of them alone. And a rest of the claims that had no solution on some islands has none on
islands that are the same but for their names. A bound on steps keeps the worst case short.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.domain.devices.claims import BorneTaint, ChoiceNeed, ClaimNeed, ConstraintNeed, RequestNeed
from tessera.domain.devices.offers import Offer, ShareAmounts, amounts_asked
from tessera.engine.claims.islands import Island, IslandState, after, amounts_left, bits_of, cost, islands_of, possible
from tessera.engine.claims.pieces import lost, usual_devices
from tessera.engine.claims.shortages import LESS_ISOLATED, TAINTED, TAKEN, UNFIT, Shortage
from tessera_schemas.cluster.devices import isolates

STEPS_MAX = 2_000
"""Devices and choices tried in one draw."""
DEVICES_OF_A_CLAIM = 32
"""As many has one allocation of a claim in Kubernetes at most."""

SeenValues = frozenset[int]
"""Values of an attribute that the devices drawn under one constraint have; one at most where they must match."""


class Pick(NamedTuple):
    """A device for the request `at` that place; `amounts` where it is shared."""

    at: int
    choice: int
    device: int
    amounts: ShareAmounts | None


class Solution(NamedTuple):
    """Picks for all requests, the choice of each, and the islands after them."""

    picks: tuple[Pick, ...]
    choices: tuple[int, ...]
    states: tuple[IslandState, ...]


class _Stop(Exception):
    """The search ends: a choice was reached of which nobody knows what it takes."""

    def __init__(self, at: int, choice: int) -> None:
        super().__init__()
        self.at, self.choice = at, choice


class _Step(NamedTuple):
    """
    A part of a solution. `choice` is -1 before one is made for the request `at` that place, then `left` devices are
    still to be drawn for it, none of them `barred`. `of_claim` are devices that the claim has wholly.
    """

    at: int
    choice: int
    left: int
    barred: int
    states: tuple[IslandState, ...]
    values: tuple[SeenValues, ...]
    of_claim: int
    picks: tuple[Pick, ...]
    claim_start: int


NextDevice = tuple[tuple[int, bool, int, int, int, int], int, int, list[int], tuple[SeenValues, ...]]
"""
A device that may come next: its cost to others, its place in the offer and on its island, the islands like that one,
and the values of constraints with it.
"""


class _Fit(NamedTuple):
    """Devices that a choice selects, those of them that it can use at all, and the amounts that it takes of each."""

    selected: int
    usable: int
    amounts: Mapping[int, ShareAmounts]
    is_known: bool


class Solver:
    """Claims on an offer; `solve` finds devices for them from any state of its islands."""

    def __init__(
        self,
        offer: Offer,
        tainted: tuple[tuple[int, str, str, str], ...],
        incomplete: bool,
        claims: tuple[ClaimNeed, ...],
        pieces: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.offer, self.incomplete, self._tainted = offer, incomplete, tainted
        attributes = {constraint.attribute for claim in claims for constraint in claim.constraints}
        self._islands, self._joining = islands_of(offer, tuple(sorted(attributes)))
        self._usual, self._claimed = (usual_devices(offer, *pieces[level : level + 1]) for level in (0, 1))
        self._named_apart = tuple(sorted(attributes - {*self._joining}))
        self.asked, self.order = self._hardest_first(claims)
        self._fits = [[self._fit(choice) for choice in request.choices] for _, request in self.asked]
        self._place = {
            index: (number, local)
            for number, island in enumerate(self._islands)
            for local, index in enumerate(island.devices)
        }
        self._begins = {at for at, (claim, _) in enumerate(self.asked) if not at or self.asked[at - 1][0] is not claim}
        self.steps = 0
        self._furthest = 0

    def _hardest_first(self, claims: tuple[ClaimNeed, ...]) -> tuple[list[tuple[ClaimNeed, RequestNeed]], list[int]]:
        """
        The requests in the order in which they are drawn, and the place of each among those of the claims.

        Requests that few devices answer come first, so that a search that fails does so early and large parts are not
        kept from their places by small ones. Those of one claim stay together.
        """
        hard = [
            [max(self._fit(choice).usable.bit_count() for choice in request.choices) for request in claim.requests]
            for claim in claims
        ]
        firsts = [sum(len(claim.requests) for claim in claims[:number]) for number in range(len(claims))]
        order = [
            (number, at)
            for number in sorted(range(len(claims)), key=lambda number: (min(hard[number]), number))
            for at in sorted(range(len(hard[number])), key=lambda at: (hard[number][at], at))
        ]
        return [(claims[n], claims[n].requests[at]) for n, at in order], [firsts[n] + at for n, at in order]

    def start(self, taken: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]) -> tuple[IslandState, ...]:
        """The islands where claims have these devices, each with its part where it is shared."""
        states = [island.make.untouched for island in self._islands]
        for index, part in taken:
            number, local = self._place[index]
            device, parts = self.offer.devices[index], dict(part)
            # Who had a shared device before it was one has no part of it: then all of it is had.
            is_share = device.is_shared and (bool(part) or not device.capacity)
            amounts = tuple(parts.get(name, 0) for name in sorted(device.capacity)) if is_share else None
            states[number] = after(self._islands[number].make, states[number], local, amounts)
        return tuple(states)

    def has_devices(self, states: tuple[IslandState, ...], pods: int) -> bool:
        """Whether there are at least as many devices as so many pods with these claims need; a look, no search."""
        needed, usable = 0, 0
        for at, (_, request) in enumerate(self.asked):
            needed += min(0 if choice.admin else choice.count or 1 for choice in request.choices)
            for fit in self._fits[at]:
                usable |= fit.usable
        places = [self._place[index] for index in bits_of(usable)]
        if any(self._islands[number].make.devices[local].is_shared for number, local in places):
            return True
        free = sum(possible(self._islands[number].make, states[number]) >> local & 1 for number, local in places)
        return free >= needed * pods

    def solve(self, states: tuple[IslandState, ...]) -> Solution | Shortage:
        """The solution whose choices are the earliest, request by request; or why there is none, after `steps`."""
        # One bound for all searches of a draw, so that many choices cost no more than many devices.
        self.steps, self._furthest = 0, 0
        try:
            found = self._search(states, {})
        except _Stop as stop:
            return self._describe(states, stop.at, stop.choice)
        if found is None:
            return self._shortage(states, self._furthest)
        # A depth-first search keeps the devices of a request while a later one falls back on a later choice. So each
        # request's earlier choices are asked for once more, with all devices to choose from.
        fixed = dict[int, int]()
        for at in sorted(range(len(self.asked)), key=self.order.__getitem__):
            for choice in range(found.choices[at]):
                try:
                    better = self._search(states, fixed | {at: choice})
                except _Stop:
                    continue  # a choice that is not known, later than those that do
                if better is not None:
                    found = better
                    break
            fixed[at] = found.choices[at]
        return found

    def keep(self, at: int, devices: Mapping[int, int]) -> None:
        """Let the request at that place have none but these devices, as bits, by its choices that are left to it."""
        none = _Fit(0, 0, {}, True)
        self._fits[at] = [
            fit._replace(usable=fit.usable & devices[number]) if number in devices else none
            for number, fit in enumerate(self._fits[at])
        ]

    # -- search ------------------------------------------------------------------------------------------------------

    def _search(self, states: tuple[IslandState, ...], fixed: Mapping[int, int]) -> Solution | None:
        """Depth first; some requests have a choice that is `fixed`."""
        if not self.asked:
            return Solution((), (), states)
        every = self._every(states)
        alike = self._alike(every)
        # Steps are values, and a path of them stands for the stack of a recursion: to go back is to forget the last,
        # nothing has to be undone, and no pod of many requests meets a limit of depth.
        failed = set[Hashable]()
        root = _Step(0, -1, 0, 0, states, self._no_values(0), 0, (), 0)
        path: list[tuple[_Step, Iterator[_Step]]] = [(root, self._next(root, fixed, every, alike))]
        while path:
            step = next(path[-1][1], None)
            if step is None:
                ended, _ = path.pop()
                # What is left of a request half drawn is seldom met twice; between requests it pays to remember.
                if ended.choice < 0:
                    failed.add(self._rest(ended, alike))
                continue
            self.steps += 1
            if self.steps > STEPS_MAX:
                return None
            if step.at == len(self.asked):
                choices = {pick.at: pick.choice for pick in step.picks}
                return Solution(step.picks, tuple(choices[at] for at in range(step.at)), step.states)
            self._furthest = max(self._furthest, step.at)
            if not (failed and step.choice < 0 and self._rest(step, alike) in failed):
                path.append((step, self._next(step, fixed, every, alike)))
        return None

    def _rest(self, step: _Step, alike: tuple[Hashable, ...]) -> Hashable:
        """Equal for steps from which the same can be reached, whatever the names of islands."""
        # How many devices the claim has counts, because an allocation has a limit; which ones it has does not.
        count = len(step.picks) - step.claim_start
        if not (any(step.values) or step.of_claim):
            return step.at, count, frozenset(Counter(zip(alike, step.states, strict=True)).items())
        numbers = range(len(self._islands))
        marks = [(self._islands[n].bits(step.of_claim), self._marks(step, n)) for n in numbers]
        return step.at, count, frozenset(Counter(zip(alike, step.states, marks, strict=True)).items())

    def _next(
        self, step: _Step, fixed: Mapping[int, int], every: Mapping[tuple[int, int], int], alike: tuple[Hashable, ...]
    ) -> Iterator[_Step]:
        if step.choice >= 0:
            yield from self._devices(step, alike)
            return
        claim, request = self.asked[step.at]
        if claim.constraints and step.at in self._begins and self._lacks_values(step, claim):
            return
        only = fixed.get(step.at)
        for number in range(len(request.choices)) if only is None else (only,):
            choice, fit = request.choices[number], self._fits[step.at][number]
            if not fit.is_known:
                raise _Stop(step.at, number)
            # As in Kubernetes a choice that is too large for the claim's allocation is passed over, and no error.
            count = choice.count or every[step.at, number].bit_count()
            if not count or len(step.picks) - step.claim_start + count > DEVICES_OF_A_CLAIM:
                continue
            chosen = step._replace(choice=number, left=count)
            if choice.count:
                yield chosen
            elif (taken := self._take_all(chosen, every[step.at, number])) is not None:
                yield taken

    def _take_all(self, step: _Step, devices: int) -> _Step | None:
        """Every one of these devices; their order is of no meaning, so that the first that fails ends it."""
        at = step.at
        for index in bits_of(devices):
            number, local = self._place[index]
            fit, island = self._fits[at][step.choice], self._islands[number]
            is_open = fit.usable & ~step.of_claim & 1 << index
            if not is_open or not self._can_be_had(step, number, local):
                return None
            values = self._with_values(step, index)
            if values is None:
                return None
            step = self._taken(step, number, local, island.devices[local], values)
        return step

    def _devices(self, step: _Step, alike: tuple[Hashable, ...]) -> Iterator[_Step]:
        """
        Each device that may come next, the one that loses and costs others least first.

        A device that was tried is barred for those after it: what is left are solutions without it, and a set of
        devices is met in one order alone. Its twins on interchangeable islands are barred with it.
        """
        fit, groups = self._fits[step.at][step.choice], dict[Hashable, list[int]]()
        usable = fit.usable & ~(step.barred | step.of_claim)
        for number, island in enumerate(self._islands):
            if usable & island.mask:
                # Barred devices are so for this request alone, and those of the claim for its further ones, too.
                used = island.bits(step.barred), island.bits(step.of_claim)
                key = alike[number], step.states[number], used, self._marks(step, number)
                groups.setdefault(key, []).append(number)
        # Of islands that are alike the first stands for all: a draw there leads where the same draw on another does.
        found: list[NextDevice] = []
        count = 0
        for members in groups.values():
            island = self._islands[members[0]]
            state = step.states[members[0]]
            for local in bits_of(island.bits(usable)):
                index = island.devices[local]
                if not self._can_be_had(step, members[0], local):
                    continue
                values = self._with_values(step, index)
                if values is not None:
                    found.append((self._cost(island, state, local), index, local, members, values))
                    count += len(members)
        # Where too few are left for the request, no order of them helps: without this a request of 9 devices on 8 would
        # try all sets of 8.
        if count < step.left or not self._has_values(step, found):
            return
        found.sort(key=lambda each: each[:2])
        barred = step.barred
        # The place in the offer breaks ties, so that every process draws the same devices.
        for _, index, local, members, values in found:
            yield self._taken(step._replace(barred=barred), members[0], local, index, values)
            for number in members:
                barred |= 1 << self._islands[number].devices[local]

    def _cost(self, island: Island, state: IslandState, local: int) -> tuple[int, bool, int, int, int, int]:
        """The loss to usual claims, then the costs; of one island the loss to all claims says where it is cut."""
        untouched, can_be_had, room, ruled_out = cost(island.make, state, local)
        usual, claimed = (
            lost(island.make, state, local, island.bits(devices)) if devices else 0
            for devices in (self._usual, self._claimed)
        )
        return usual, untouched, can_be_had, room, claimed, ruled_out

    def _can_be_had(self, step: _Step, number: int, local: int) -> bool:
        """Whether counters, holders and the capacity that is left allow one more claim; administrators need none."""
        if self._choice(step).admin:
            return True
        make, state = self._islands[number].make, step.states[number]
        if not possible(make, state) >> local & 1:
            return False
        if not make.devices[local].is_shared:
            return True
        amounts = self._fits[step.at][step.choice].amounts[self._islands[number].devices[local]]
        return all(has >= takes for has, takes in zip(amounts_left(make, state, local), amounts, strict=True))

    def _taken(self, step: _Step, number: int, local: int, index: int, values: tuple[SeenValues, ...]) -> _Step:
        """The step after a device was drawn; after the last of a request, before a choice for the next."""
        make, states = self._islands[number].make, step.states
        is_shared, admin = make.devices[local].is_shared, self._choice(step).admin
        amounts = self._fits[step.at][step.choice].amounts[index] if is_shared and not admin else None
        # An administrator's access changes nothing for others, and yet a claim has a device once.
        if not admin:
            states = (*states[:number], after(make, states[number], local, amounts), *states[number + 1 :])
        of_claim = step.of_claim if is_shared else step.of_claim | 1 << index
        picks = (*step.picks, Pick(step.at, step.choice, index, amounts))
        # A shared device is had once by a request; further requests of the claim may have shares of their own.
        if step.left > 1:
            barred = step.barred | 1 << index
            return _Step(step.at, step.choice, step.left - 1, barred, states, values, of_claim, picks, step.claim_start)
        at = step.at + 1
        if at in self._begins or at == len(self.asked):
            return _Step(at, -1, 0, 0, states, self._no_values(at), 0, picks, len(picks))
        return _Step(at, -1, 0, 0, states, values, of_claim, picks, step.claim_start)

    def _choice(self, step: _Step) -> ChoiceNeed:
        return self.asked[step.at][1].choices[step.choice]

    # -- constraints -------------------------------------------------------------------------------------------------

    def _no_values(self, at: int) -> tuple[SeenValues, ...]:
        return (frozenset(),) * len(self.asked[at][0].constraints) if at < len(self.asked) else ()

    def _with_values(self, step: _Step, index: int) -> tuple[SeenValues, ...] | None:
        """Values of the claim's constraints with one more device; None where it breaks one."""
        claim, request = self.asked[step.at]
        if not claim.constraints:
            return step.values
        same, values = self.offer.devices[index].same, []
        for constraint, before in zip(claim.constraints, step.values, strict=True):
            if not _concerns(constraint, request, request.choices[step.choice]):
                values.append(before)
                continue
            # A device without the attribute satisfies no constraint on it, and of values only equality is known.
            value = same.get(constraint.attribute)
            if value is None or (value in before if constraint.distinct else bool(before) and value not in before):
                return None
            values.append(before | {value})
        return tuple(values)

    def _has_values(
        self,
        step: _Step,
        found: Sequence[NextDevice],
    ) -> bool:
        """Whether the devices that may come next have, as many as are left, one value to match, or each another."""
        claim, request = self.asked[step.at]
        for constraint in claim.constraints if step.left > 1 else ():
            if _concerns(constraint, request, request.choices[step.choice]):
                places = ((self._islands[number], local) for _, _, local, members, _ in found for number in members)
                same = (self.offer.devices[island.devices[local]].same for island, local in places)
                values = Counter(values[constraint.attribute] for values in same)
                if (len(values) if constraint.distinct else max(values.values())) < step.left:
                    return False
        return True

    def _lacks_values(self, step: _Step, claim: ClaimNeed) -> bool:
        """
        Whether a constraint of the claim cannot hold: too few values for as many devices, or too few devices of one.

        The search would find out as well, and only after it had tried each device for each request.
        """
        mine = range(step.at, step.at + len(claim.requests))
        for constraint in claim.constraints:
            needed, usable, beside = 0, 0, False
            for at in mine:
                request = self.asked[at][1]
                counts = []
                for number, choice in enumerate(request.choices):
                    counts.append((choice.count or 1) if _concerns(constraint, request, choice) else 0)
                    fit = self._fits[at][number]
                    if not fit.is_known:
                        return False  # the search says so when it comes there
                    usable |= fit.usable
                    beside |= choice.admin
                needed += min(counts)
            values = Counter[int]()
            for index in bits_of(usable):
                number_of, local = self._place[index]
                make, value = self._islands[number_of].make, self.offer.devices[index].same.get(constraint.attribute)
                if value is not None and (beside or possible(make, step.states[number_of]) >> local & 1):
                    # Several requests of a claim may have shares of one device, and it counts for each.
                    values[value] += needed if make.devices[local].is_shared else 1
            if (len(values) if constraint.distinct else max(values.values(), default=0)) < needed:
                return True
        return False

    def _marks(self, step: _Step, number: int) -> Hashable:
        """Places of the values that constraints have seen: the island is no more like one without them."""
        if not any(step.values):
            return ()
        island, (claim, _) = self._islands[number], self.asked[step.at]
        return tuple(
            tuple(
                local
                for local, index in enumerate(island.devices)
                if self.offer.devices[index].same.get(constraint.attribute) in values
            )
            for constraint, values in zip(claim.constraints, step.values, strict=True)
        )

    # -- what a choice can use ---------------------------------------------------------------------------------------

    def _fit(self, choice: ChoiceNeed) -> _Fit:
        selection = self.offer.selected(choice.device_class, choice.selectors)
        if selection is None or selection.error or (self.offer.digest and not self.offer.devices):
            return _Fit(0, 0, {}, False)
        # Most devices have no policy and most requests ask for no amount: then nothing is left out.
        amounts = amounts_asked(self.offer, choice.capacity)
        usable = selection.devices
        if len(amounts) < len(self.offer.devices):
            usable = sum(1 << index for index in bits_of(usable) if index in amounts)
        for index, *_ in self._suffered(choice):
            usable &= ~(1 << index)
        for index in self._less_isolated(choice, usable):
            usable &= ~(1 << index)
        return _Fit(selection.devices, usable, amounts, not (self.incomplete and not choice.count))

    def _every(self, states: tuple[IslandState, ...]) -> Mapping[tuple[int, int], int]:
        """
        The devices that each choice of every device means, as bits.

        As in Kubernetes those are left out whose capacity does not do, and shared ones of which too little is left
        before anything is drawn. Others that cannot be had stay, and no draw succeeds.
        """
        found = {}
        for at, (_, request) in enumerate(self.asked):
            for number, choice in enumerate(request.choices):
                if not choice.count:
                    fit = self._fits[at][number]
                    meant = (index for index in bits_of(fit.selected) if self._has_room(fit, choice, states, index))
                    found[at, number] = sum(1 << index for index in meant)
        return found

    def _has_room(self, fit: _Fit, choice: ChoiceNeed, states: tuple[IslandState, ...], index: int) -> bool:
        amounts, (number, local) = fit.amounts.get(index), self._place[index]
        make = self._islands[number].make
        # Whoever looks after devices needs nothing of what is left, but the device must have what was asked for.
        if amounts is None or choice.admin or not make.devices[local].is_shared:
            return amounts is not None
        return all(has >= takes for has, takes in zip(amounts_left(make, states[number], local), amounts, strict=True))

    def _alike(self, every: Mapping[tuple[int, int], int]) -> tuple[Hashable, ...]:
        """For each island what tells it from others, besides its state: make, use for these claims, and values."""
        # The order of a set of numbers is the same in each process; of the islands only equality counts.
        masks = {fit.usable for fits in self._fits for fit in fits} | {*every.values()} | {self._usual, self._claimed}
        told: list[Hashable] = []
        numbers: dict[Hashable, int] = {}
        for island in self._islands:
            values: tuple[int | None, ...] = ()
            if self._named_apart:
                values = tuple(
                    self.offer.devices[index].same.get(name) for name in self._named_apart for index in island.devices
                )
            content = id(island.make), tuple(island.bits(mask) for mask in masks), values
            told.append(numbers.setdefault(content, len(numbers)))
        return tuple(told)

    # -- why not -----------------------------------------------------------------------------------------------------

    def _shortage(self, states: tuple[IslandState, ...], furthest: int) -> Shortage:
        """Of the first request that cannot be answered by itself, else of the one that the search did not pass."""
        for at, (_, request) in enumerate(self.asked):
            told = [self._describe(states, at, number) for number in range(len(request.choices))]
            # A request that nothing would answer even alone is the plainest reason, whatever the search tried last.
            if all(_lack(each) > 0 for each in told):
                return min(told, key=_lack)
        return self._describe(states, furthest, 0, self.steps > STEPS_MAX)

    def describe_again(self, states: tuple[IslandState, ...], short: Shortage) -> Shortage:
        """The evidence about the same choice of the same request with the devices in these states."""
        asked = ((claim.name, request.name) for claim, request in self.asked)
        at = next(at for at, names in enumerate(asked) if names == (short.claim, short.request))
        return self._describe(states, at, short.choice)

    def _describe(self, states: tuple[IslandState, ...], at: int, number: int, gave_up: bool = False) -> Shortage:
        claim, request = self.asked[at]
        choice, fit = request.choices[number], self._fits[at][number]
        selection = self.offer.selected(choice.device_class, choice.selectors)
        is_unknown = selection is None or bool(self.offer.digest and not self.offer.devices)
        counted, networked = Counter[str](), list[tuple[str, str]]()
        tainted = {index: key for index, key, _, _ in reversed(self._suffered(choice))}
        less_isolated = self._less_isolated(choice, fit.selected)
        for index in bits_of(fit.selected):
            (number_of, local), what = self._place[index], ""
            if index not in fit.amounts:
                what = UNFIT
            elif index in less_isolated:
                what = LESS_ISOLATED
            elif index in tainted:
                what = TAINTED + tainted[index]
            elif not choice.admin:
                can = possible(self._islands[number_of].make, states[number_of]) >> local & 1
                what = "" if can and self._has_room(fit, choice, states, index) else TAKEN
            counted[what] += 1
            device = self.offer.devices[index]
            if (device.driver, device.pool) in self.offer.networks:
                networked.append((f"{device.driver}/{device.pool}/{device.name}", what))
        return Shortage(
            claim.name,
            request.name,
            choice.device_class,
            choice.count,
            fit.selected.bit_count(),
            counted[TAKEN],
            tuple(sorted((key.removeprefix(TAINTED), n) for key, n in counted.items() if key.startswith(TAINTED))),
            counted[UNFIT],
            is_unknown,
            "" if selection is None else selection.error,
            self.incomplete and not choice.count,
            gave_up,
            tuple(networked),
            counted[LESS_ISOLATED],
            number,
        )

    def _less_isolated(self, choice: ChoiceNeed, devices: int) -> list[int]:
        """Devices among these whose shares are less apart than is asked for; who looks after them has no share."""
        if choice.isolation == "none" or choice.admin:
            return []
        return [i for i in bits_of(devices) if not isolates(self.offer.devices[i].isolation, choice.isolation)]

    def _suffered(self, choice: ChoiceNeed) -> list[tuple[int, str, str, str]]:
        return [
            each
            for each in self._tainted
            if not any(_is_borne(toleration, *each[1:]) for toleration in choice.tolerations)
        ]


def _lack(told: Shortage) -> int:
    """Number of devices that are not there, by themselves; where every one is asked for, those that cannot be had."""
    hindered = told.taken + told.less_isolated + sum(number for _, number in told.tainted)
    there = told.matching - told.unfit
    return told.count - (there - hindered) if told.count else hindered or int(not there)


def _concerns(constraint: ConstraintNeed, request: RequestNeed, choice: ChoiceNeed) -> bool:
    named = constraint.requests
    return not named or request.name in named or f"{request.name}/{choice.name}" in named


def _is_borne(toleration: BorneTaint, key: str, value: str, effect: str) -> bool:
    of, wanted, when, any_value = toleration
    return of in ("", key) and when in ("", effect) and (any_value or wanted == value)
