"""
`python -m tessera_lab.reputation`: how soon bad nodes are found by the runs that they fail, and how many good ones are
taken for bad, in a simulated park whose programs fail, too.

Each run holds whole nodes, a job's next run avoids the nodes that failed it, and nodes are chosen at random: so that
what is found is due to the evidence alone. Suspects get what is short and has one pod, bad ones get nothing. With
`--test-minutes` a suspect that is free gets a test job as well, which fails as often as any run there, and is not
counted among what a bad node failed.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import mean

from tessera.domain.health.reputation import Ended, FailureRates, NodeStanding, Reckoning, Reputations

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SIZES = 1, 1, 1, 1, 2, 2, 4, 8, 16
"""Nodes of a job: each as likely as it stands here."""
MEAN_HOURS, SHORT_HOURS, SHORT_PART = 4, 1, 0.3
ATTEMPTS = 3
TEST_AGAIN_MS = 6 * HOUR_MS  # pause between two tests of a node, as `health.test.again_seconds` usually is
SUSPECTS_OPENED = 4
"""A job of one short pod goes to a suspect once in so many times, where there is one."""


@dataclass(frozen=True, slots=True)
class SimulatedPark:
    """Sizes and faults of the park that is simulated; percentages of runs, and of failures."""

    nodes: int = 1000
    bad: int = 10
    days: int = 14
    faults_percent: float = 2.0
    broken_percent: float = 0.5
    named_percent: float = 100.0
    least_when_bad: float = 0.5
    half_life_days: int = 7
    users: int = 50
    test_minutes: int = 0


@dataclass(slots=True)
class ParkWork:
    """A job: its size and length, the nodes that failed it, and whether its program can end well at all."""

    name: str
    user: str
    size: int
    length_ms: int
    broken: bool
    is_test: bool = False
    attempts: int = 0
    avoid: set[str] = field(default_factory=set)

    @property
    def is_short(self) -> bool:
        return self.size == 1 and self.length_ms <= SHORT_HOURS * HOUR_MS


@dataclass(frozen=True, slots=True)
class ParkFindings:
    """
    Findings: failures that each bad node had caused when it was closed, and when it was first suspected; bad ones not
    found, good ones taken for bad.
    """

    after_failures: tuple[int, ...]
    suspected_after: tuple[int, ...]
    missed: int
    good_taken: int
    good_suspected: int
    good: int


class Simulation:
    """One park over its days."""

    def __init__(self, park: SimulatedPark, seed: int) -> None:
        self._park, self._random, self._ts = park, Random(seed), 0
        self._reckoning = Reckoning(park.half_life_days * DAY_MS)
        self._rows, self._rates = Reputations(), FailureRates()
        names = [f"n{number:04}" for number in range(park.nodes)]
        bad = self._random.sample(names, park.bad)
        self._fails = {name: self._random.uniform(park.least_when_bad, 1) for name in bad}
        self._free, self._names = set(names), names
        self._caused = dict.fromkeys(self._fails, 0)
        self._ends = list[tuple[int, int, ParkWork, tuple[str, ...], tuple[str, ...]]]()
        self._again, self._number = list[ParkWork](), 0
        self._tested = dict[str, int]()  # by node the end of its last test
        self._taken, self._suspected, self._after = set[str](), set[str](), dict[str, int]()
        self._suspected_after = dict[str, int]()

    def run(self) -> ParkFindings:
        """Fill the park, follow each end of a run, and fill it again."""
        self._fill()
        while self._ends and self._ends[0][0] < self._park.days * DAY_MS:
            self._ts, _, work, nodes, failed = heappop(self._ends)
            self._free.update(nodes)
            self._end(work, nodes, failed)
            self._fill()
        good = self._park.nodes - self._park.bad
        missed = len(self._fails.keys() - self._taken)
        taken, suspected = (len(names - self._fails.keys()) for names in (self._taken, self._suspected))
        after = tuple(self._after.values()), tuple(self._suspected_after.values())
        return ParkFindings(*after, missed, taken, suspected, good)

    def _fill(self) -> None:
        self._test_suspects()
        while (work := self._again.pop() if self._again else self._next()) and self._start(work):
            pass
        self._again.append(work)

    def _test_suspects(self) -> None:
        """Give a test to each suspect that is free, unless it had one within the pause."""
        length = self._park.test_minutes * 60_000
        for name in sorted(self._rows_free()) if length else ():
            due = self._tested.get(name, -TEST_AGAIN_MS) + TEST_AGAIN_MS <= self._ts
            if due and self._standing(name) is NodeStanding.SUSPECT:
                self._number += 1
                self._tested[name] = self._ts + length
                self._free.discard(name)
                fails = self._fails.get(name, self._park.faults_percent / 100)
                failed = (name,) if self._random.random() < fails else ()
                test = ParkWork(f"t{self._number}", "", 1, length, False, is_test=True)
                heappush(self._ends, (self._ts + length, self._number, test, (name,), failed))

    def _next(self) -> ParkWork:
        self._number += 1
        random, size = self._random, self._random.choice(SIZES)
        hours = random.expovariate(1 / MEAN_HOURS)
        if size == 1 and random.random() < SHORT_PART:
            hours = random.uniform(0.1, SHORT_HOURS)
        broken = random.random() * 100 < self._park.broken_percent
        user = f"u{int(self._park.users * random.random() ** 2)}"
        return ParkWork(f"j{self._number}", user, size, int(max(hours, 0.1) * HOUR_MS), broken)

    def _start(self, work: ParkWork) -> bool:
        """Choose nodes at random among those that take the job, and decide how its run ends."""
        nodes, random = self._choose(work), self._random
        if len(nodes) < work.size:
            return False
        self._free.difference_update(nodes)
        failed = tuple(node for node in nodes if random.random() < self._fails.get(node, 0))[:1]
        for node in () if work.broken else failed:  # which would have failed anywhere
            self._caused[node] += 1
        if work.broken or (not failed and random.random() * 100 < self._park.faults_percent):
            failed = failed or (random.choice(nodes),)
        length = int(work.length_ms * random.uniform(0.05, 1)) if failed else work.length_ms
        named = len(nodes) == 1 or random.random() * 100 < self._park.named_percent
        heappush(self._ends, (self._ts + length, self._number, work, nodes, failed if named or not failed else nodes))
        self._number += 1
        return True

    def _choose(self, work: ParkWork) -> tuple[str, ...]:
        random, found = self._random, list[str]()
        if work.is_short and not random.randrange(SUSPECTS_OPENED):
            suspects = [name for name in sorted(self._rows_free()) if self._standing(name) is NodeStanding.SUSPECT]
            suspects = [name for name in suspects if name not in work.avoid]
            if suspects:
                return (random.choice(suspects),)
        for name in random.sample(sorted(self._free), len(self._free)):
            if len(found) == work.size:
                break
            if name not in work.avoid and self._standing(name) is NodeStanding.GOOD:
                found.append(name)
        return tuple(found)

    def _rows_free(self) -> Iterable[str]:
        return (name for name, _ in self._rows.items() if name in self._free)

    def _standing(self, name: str) -> NodeStanding:
        return self._reckoning.standing(self._rows.get(name), self._ts)

    def _end(self, work: ParkWork, nodes: tuple[str, ...], failed: tuple[str, ...]) -> None:
        if work.is_test:
            (node,) = nodes
            if failed:
                self._reckoning.failed_test(self._rows, node, work.name, self._ts)
            else:
                self._reckoning.passed_test(self._rows, node, self._ts)
            self._note(failed)
            return
        if not failed:
            self._reckoning.lasted(self._rows, self._rates, Ended(self._ts, "default", work.user, work.name, nodes))
            return
        self._reckoning.failed(self._rows, self._rates, Ended(self._ts, "default", work.user, work.name, failed))
        self._note(failed)
        work.avoid.update(failed)
        work.attempts += 1
        if work.attempts < ATTEMPTS:
            self._again.append(work)

    def _note(self, failed: Iterable[str]) -> None:
        for name in failed:
            standing = self._standing(name)
            if standing is not NodeStanding.GOOD:
                self._suspected.add(name)
                if name in self._fails:
                    self._suspected_after.setdefault(name, self._caused[name])
            if standing is NodeStanding.BAD and name not in self._taken:
                self._taken.add(name)
                if name in self._fails:
                    self._after[name] = self._caused[name]


def report(park: SimulatedPark, seeds: Iterable[int]) -> list[str]:
    """A line for each seed, and one for all."""
    lines, all_of_them = list[str](), list[ParkFindings]()
    for seed in seeds:
        found = Simulation(park, seed).run()
        all_of_them.append(found)
        lines.append(f"seed {seed:>3}: {_line([found])}")
    return [*lines, f"all     : {_line(all_of_them)}"]


def _line(found: list[ParkFindings]) -> str:
    after = sorted(number for each in found for number in each.after_failures)
    missed, good = sum(each.missed for each in found), sum(each.good for each in found)
    within = sum(1 for number in after if number <= 3)
    taken = 100 * sum(each.good_taken for each in found) / good
    suspected = 100 * sum(each.good_suspected for each in found) / good
    average, most = (mean(after), max(after)) if after else (0, 0)
    first = [number for each in found for number in each.suspected_after]
    return (
        f"{len(first)} bad nodes suspected, after {max(first, default=0)} failures of theirs at most; {len(after)} "
        f"closed, {missed} not, after {average:.2f}, {most} at most, {within} within 3; "
        f"good ones taken for bad {taken:.2f} %, suspected for a while {suspected:.2f} %"
    )


def main() -> None:
    """Read the park from the command line, and print what is found in it."""
    parser = argparse.ArgumentParser(prog="python -m tessera_lab.reputation", description=__doc__)
    usual = SimulatedPark()
    for name in SimulatedPark.__slots__:
        value = getattr(usual, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--seeds", type=int, default=10, help="number of them")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    asked = vars(parser.parse_args())
    seeds, first = asked.pop("seeds"), asked.pop("first")
    print("\n".join(report(SimulatedPark(**asked), range(first, first + seeds))))


if __name__ == "__main__":
    main()
