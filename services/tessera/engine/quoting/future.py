"""
One drawn future of a pool: runs end, jobs arrive and the line moves, until the jobs that are asked about have started.

The rules are the engine's, on counts: best fit, the order of each queue with its patience, fair shares by what is held,
quotas up the tree, strict queues, and room kept ahead for the first blocked jobs. `Outlook` is what all futures of a
pool have in common, `play` draws one of them. Times are ledger milliseconds.
"""

from bisect import insort
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from itertools import groupby
from typing import NamedTuple

from tessera.engine.quoting.chance import ONE, Draws
from tessera.engine.quoting.lengths import guess
from tessera.engine.quoting.outlook import EqualJobs, Outlook
from tessera.engine.quoting.pool_now import JobShape, WindowNow
from tessera_schemas.base import INT_MAX

STOPPING_MS = 30_000
"""About how long a run that is being stopped holds its GPUs yet."""
NEVER_MS = 365 * 24 * 3_600_000
"""Wait of a job for which nothing that is still to happen makes room, at least."""
SHARE_UNIT = 1_000_000
KEPT_LEAST_MS = 300_000
"""Room that is kept in a future is not sought anew before."""
RANKS_A_STEP = 4
"""Lines that are ranked in about the time of another step."""
NODES_A_STEP = 8
"""Nodes of which a search for an opening asks in about the time of another step."""

LineRank = tuple[int, ...]


class Played(NamedTuple):
    """Starts of jobs in one future by their numbers among the waiting, how far it was played, and in how many steps."""

    starts: dict[int, int]
    until: int
    steps: int


def play(outlook: Outlook, chance: Draws, asked: Collection[int], steps_max: int) -> Played:
    """Draw a future, until the jobs of these numbers have started, or for `steps_max` steps."""
    future = _Future(outlook, chance)
    return future.play(set(asked), steps_max)


class _Future:
    def __init__(self, outlook: Outlook, chance: Draws) -> None:
        now = outlook.now
        self._outlook, self._lines = outlook, outlook.lines
        # Arrivals and lengths are drawn from sequences of their own: one job that comes more or less moves no length of
        # those that run already. What changes in a future is made anew for each; all else is read in the outlook.
        self._lengths = chance.split()
        self._free = [node.free for node in now.nodes]
        # By part and number of free GPUs: nodes, of which those count that still have as many free.
        self._by_free: list[list[list[int]]] = [
            [[] for _ in range(outlook.largest + 1)] for _ in range(max(outlook.part_of, default=0) + 1)
        ]
        for at in reversed(range(len(self._free))):
            self._by_free[outlook.part_of[at]][self._free[at]].append(at)
        self._waiting = [list(line.jobs) for line in outlook.lines]
        self._heads = [0] * len(outlook.lines)
        # Lines in which somebody waits, by what their first pod needs at least: which models, and how many GPUs.
        self._some: dict[tuple[tuple[int, ...], int], set[int]] = {}
        for line in outlook.lines:
            if line.jobs:
                self._some.setdefault((line.parts, line.pieces[0]), set()).add(line.number)
        self._used = [0] * len(outlook.queues)
        self._held: dict[tuple[object, ...], int] = {}
        self._places: list[tuple[tuple[int, int], ...]] = []
        self._run_line: list[int] = []
        self._expected_end: list[int] = []
        self._on_node: list[set[int]] = [set() for _ in now.nodes]
        self._kept: dict[int, tuple[int, int, frozenset[int]]] = {}
        self._kept_nodes: dict[int, int] = {}
        # By GPUs and node: when it is expected to have them free, and until when that stands while its runs do.
        self._openings: dict[int, dict[int, tuple[int | None, int]]] = {}
        self._ends: list[tuple[int, int]] = []
        # By its age, and by its limit: what has outlived all that was seen still ends, and never before now.
        # Of a young shard nobody knows whether runs take the time that they ask for: in half of its futures all do.
        self._guesses = outlook.chances.known < ONE
        self._at_their_word = self._guesses and self._lengths.part() * 2 < ONE
        for number, places, expected_end, run in outlook.runs:
            self._note_run(number, places, expected_end)
            end = run.started_ts + self._length(run.shape, max(0, now.ts - run.started_ts))
            end = now.ts + STOPPING_MS if run.stopping else max(end, now.ts + 1)
            self._ends.append((end, len(self._places) - 1))
        heapify(self._ends)
        self._arrivals: Iterator[tuple[int, JobShape]] = outlook.arrivals.drawn(now.ts, chance.split())
        self._later = sorted(outlook.later)
        self._started: dict[int, int] = {}
        self._searched = self._passed = 0
        # By node when its next window begins, or has begun; bookings whose window is now; those that are not needed
        # any more; and runs that ended for a window before their time.
        self._shut_from, self._open = dict(outlook.windows.shut_from), dict(outlook.windows.open)
        self._dropped: set[str] = set()
        self._over: set[int] = set()

    def play(self, asked: set[int], steps_max: int) -> "Played":
        # A step is an end, an arrival or a look at a job in line. Counted, and not timed, a future is the same on any
        # machine; a search for kept room looks at all nodes, and counts for as many steps as it takes time.
        now, steps = self._outlook.now.ts, 0
        arrival = next(self._arrivals, None)
        self._settle(now)
        searching, bounds, bound = len(self._free) // NODES_A_STEP, self._outlook.windows.bounds, 0
        while steps + self._searches(searching) < steps_max and not asked <= self._started.keys():
            times = [self._ends[0][0]] if self._ends else []
            times += [arrival[0]] if arrival is not None else []
            times += [self._later[0][0]] if self._later else []
            times += [bounds[bound][0]] if bound < len(bounds) else []
            if not times:
                now += NEVER_MS
                break
            now = min(times)
            while self._ends and self._ends[0][0] <= now:
                self._end(heappop(self._ends)[1])
                steps += 1
            while bound < len(bounds) and bounds[bound][0] <= now:
                _, begins, window = bounds[bound]
                self._turn(window, begins, now)
                bound, steps = bound + 1, steps + 1 + len(window.nodes) // NODES_A_STEP
            while arrival is not None and arrival[0] <= now:
                self._join(self._outlook.line_of(arrival[1]), (now, -1, INT_MAX))
                arrival = next(self._arrivals, None)
                steps += 1
            while self._later and self._later[0][0] <= now:
                _, at, number = self._later.pop(0)
                job = self._outlook.now.waiting[at]
                self._join(self._lines[number], (job.submitted_ts, at, job.deadline_ts or INT_MAX))
            steps += self._settle(now)
        steps += self._searches(searching)
        return Played({at: self._started[at] for at in asked if at in self._started}, now, steps)

    def _searches(self, searching: int) -> int:
        """Steps for what was looked at in searches of nodes."""
        return self._searched * searching + self._passed // NODES_A_STEP

    def _turn(self, window: WindowNow, begins: bool, now: int) -> None:
        """A window begins or ends: who has no part in it leaves its nodes, or who had part in it."""
        if window.booking in self._dropped:
            return
        # The committer has told them to stop in time; here they are gone to the moment, and come back to no line.
        for node in window.nodes:
            for run in sorted(self._on_node[node]):
                if (self._lines[self._run_line[run]].booking == window.booking) != begins:
                    self._end(run)
                    self._over.add(run)
        if begins:
            self._open[window.booking] = window
        else:
            self._open.pop(window.booking, None)
            self._shut_anew(window, now)

    def _shut_anew(self, window: WindowNow, now: int) -> None:
        """Find out again from when on the nodes of a window that is over are shut."""
        on_node = self._outlook.windows.on_node
        for node in window.nodes:
            ahead = [each for each in on_node[node] if each.end_ts > now and each.booking not in self._dropped]
            self._shut_from.pop(node, None)
            if ahead:
                self._shut_from[node] = min(each.start_ts for each in ahead)

    def _join(self, line: EqualJobs, job: tuple[int, int, int]) -> None:
        # A line that no future before has met was added to the outlook behind the lines that this one began with.
        while len(self._waiting) < len(self._lines):
            self._waiting.append([])
            self._heads.append(0)
        # By age: who comes back from a back-off is older than those that came meanwhile.
        insort(self._waiting[line.number], job, lo=self._heads[line.number])
        self._some.setdefault((line.parts, line.pieces[0]), set()).add(line.number)

    def _settle(self, now: int) -> int:
        """Starts who may start now, in the order of the line; the number of jobs that were looked at."""
        room = [self._most_free(part) for part in range(len(self._by_free))]
        lines, depth = self._lines, self._outlook.now.depth
        # Nearly always one node has become free by little: the lines that this is too small for are not ordered at all.
        able = [
            number
            for (parts, gpus), numbers in self._some.items()
            if numbers and any(room[part] >= gpus for part in parts)
            for number in numbers
        ]
        if not able:
            return 1
        # Those who find no room matter only where room is kept for them, or where nobody passes them.
        strict = any(queue.strict for queue in self._outlook.queues)
        ranked = [n for numbers in self._some.values() for n in numbers] if depth or strict else able
        heap = [(self._rank(n, now), n) for n in ranked]
        heapify(heap)
        shut: set[int] = set()
        looked, self._kept_nodes = 1 + len(heap) // RANKS_A_STEP, {}
        blocked = 0
        # Whoever is last in the line and has room is the last one that matters.
        left = set(able)
        while heap and left:
            _, number = heap[0]
            line = lines[number]
            looked += 1
            if line.path[:1] and line.path[0] in shut:
                heappop(heap)
                left.discard(number)
                continue
            places = self._find(line, now)
            if places is not None:
                self._start(line, places, now)
                if self._heads[number] < len(self._waiting[number]):
                    heapreplace(heap, (self._rank(number, now), number))
                else:
                    heappop(heap)
                    left.discard(number)
                continue
            heappop(heap)
            left.discard(number)
            if line.path and self._outlook.queues[line.path[0]].strict:
                shut.add(line.path[0])
            waited = now - self._waiting[number][self._heads[number]][0]
            if blocked < depth and waited >= self._outlook.now.backfill_patience_ms:
                blocked += self._keep_room(line, now)
        return looked

    def _most_free(self, part: int) -> int:
        """Most GPUs that are free on one node of the part."""
        free, by_free = self._free, self._by_free[part]
        for count in range(len(by_free) - 1, 0, -1):
            nodes = by_free[count]
            while nodes and free[nodes[-1]] != count:
                nodes.pop()
            if nodes:
                return count
        return 0

    def _rank(self, number: int, now: int) -> LineRank:
        """Place of a line's first job, as the engine orders a pool's line."""
        line, outlook = self._lines[number], self._outlook
        submitted, _, deadline = self._waiting[number][self._heads[number]]
        order = outlook.queues[line.path[0]].order if line.path else "age"
        own: LineRank = (submitted,)
        if order != "age":
            waited = now - submitted
            if waited >= outlook.now.patience_ms:
                own = 0, submitted
            elif order == "expected":
                length = line.expected_ms
                own = 1, line.gpus * length * length // (length + waited), submitted
            else:
                own = 1, deadline, submitted
        return (*self._share(line), *own, number) if outlook.shared else (-line.shape.priority, *own, number)

    def _share(self, line: EqualJobs) -> LineRank:
        """Keys that stand before a queue's own order: borrowing, class, and shares from the root down."""
        outlook, shape = self._outlook, line.shape
        queues, gpus = outlook.queues, max(1, outlook.gpus)
        # As in the engine a borrower stands behind all owners, whatever its class. The engine chooses branch by branch
        # with the class of each one's first job; all keys in a row come to the same, but where classes cross.
        late = any(self._used[at] + line.gpus > queues[at].own for at in line.path[:1])
        rank = [int(late), -shape.priority]
        for at in reversed(line.path):
            rank.append(_weighted(self._used[at], queues[at].weight, gpus))
        tenant = (line.path, shape.kind.tenant)
        weight = outlook.now.tenant_weights.get(shape.kind.tenant, 1)
        rank.append(_weighted(self._held.get(tenant, 0), weight, gpus))
        rank.append(_weighted(self._held.get((*tenant, shape.user), 0), 1, gpus))
        return tuple(rank)

    def _find(self, line: EqualJobs, now: int) -> list[tuple[int, int]] | None:
        """Take nodes for the line's first job, all of one model; None where there is no room or no quota."""
        if self._outlook.bounded and any(
            self._used[at] + line.gpus > self._outlook.queues[at].most for at in line.path
        ):
            return None
        if line.booking:
            found = self._find_booked(line, now)
            if found is not None or not line.elsewhere:
                return found
        # All pods on one model, as a gang is placed: one that finds no room on the first is tried on the next.
        until = now + (line.stay_ms or line.forecast_ms)
        for part in line.parts:
            taken: list[tuple[int, int]] = []
            for gpus in line.pieces:
                node = self._take(part, gpus, until)
                if node < 0:
                    break
                taken.append((node, gpus))
            else:
                return taken
            # All or nothing: what was taken for the first pods is free again.
            for node, gpus in taken:
                self._give(node, gpus)
        return None

    def _find_booked(self, line: EqualJobs, now: int) -> list[tuple[int, int]] | None:
        """Take nodes of the window that is for these jobs now; None without one, or where it has no room or time."""
        window = self._open.get(line.booking)
        if window is None or (not line.elsewhere and now + line.shape.limit_ms > window.end_ts):
            return None
        # Of the few nodes of a window each is asked: the lists by free GPUs are of all nodes.
        for part in line.parts:
            nodes = [node for node in window.nodes if self._outlook.part_of[node] == part]
            taken: list[tuple[int, int]] = []
            for gpus in line.pieces:
                fitting = [(self._free[node], node) for node in nodes if self._free[node] >= gpus]
                if not fitting:
                    break
                taken.append((min(fitting)[1], gpus))
                self._give(taken[-1][0], -gpus)
            else:
                return taken
            for node, gpus in taken:
                self._give(node, gpus)
        return None

    def _take(self, part: int, gpus: int, until: int) -> int:
        free, by_free, kept, shut = self._free, self._by_free[part], self._kept_nodes, self._shut_from
        for count in range(gpus, len(by_free)):
            nodes = by_free[count]
            # A node whose number of free GPUs has changed since it was put here stands elsewhere, too: it is dropped
            # when it is met, which spares the search for it when it changes.
            aside = []
            found = -1
            while nodes:
                node = nodes.pop()
                if free[node] != count:
                    continue
                if (kept and kept.get(node, INT_MAX) < until) or (shut and shut.get(node, INT_MAX) < until):
                    aside.append(node)
                    continue
                found = node
                break
            if aside:
                nodes.extend(reversed(aside))
                self._passed += len(aside)
            if found >= 0:
                self._give(found, -gpus)
                return found
        return -1

    def _give(self, node: int, gpus: int) -> None:
        # Shares of one GPU count as a whole one each, so that their ends could give back more than the node has.
        free = self._free[node] = min(self._free[node] + gpus, self._outlook.now.nodes[node].gpus)
        for known in self._openings.values():
            known.pop(node, None)
        self._by_free[self._outlook.part_of[node]][free].append(node)

    def _start(self, line: EqualJobs, places: list[tuple[int, int]], now: int) -> None:
        number = line.number
        waiting, head = self._waiting[number], self._heads[number]
        asked = waiting[head][1]
        # The list stays as it is: to take its first away would cost as much as it is long.
        self._heads[number] = head + 1
        if head + 1 == len(waiting):
            self._some[line.parts, line.pieces[0]].discard(number)
        if asked >= 0:
            self._started[asked] = now
        self._kept.pop(number, None)
        if line.booking and line.elsewhere:
            self._drop(line.booking, now)
        length = self._length(line.shape, 0)
        self._note_run(number, tuple(places), now + line.forecast_ms)
        heappush(self._ends, (now + length, len(self._places) - 1))

    def _drop(self, booking: str, now: int) -> None:
        """A promised job has started: its nodes are kept no longer."""
        self._dropped.add(booking)
        # Its bound of time still comes, and then finds it dropped.
        self._open.pop(booking, None)
        for window in self._outlook.now.windows:
            if window.booking == booking:
                self._shut_anew(window, now)

    def _length(self, shape: JobShape, elapsed_ms: int) -> int:
        # Once enough is known nothing further is drawn: such futures are the same as if there were no guesses.
        chances, part = self._outlook.chances, self._lengths.part()
        if self._guesses and self._lengths.part() >= chances.known:
            length = guess(shape.limit_ms, elapsed_ms, part, self._at_their_word)
        else:
            length = chances.draw(shape.kind, elapsed_ms, part)
        # A run that is stopped by its limit is over for the pool, whatever becomes of its job.
        return min(length, shape.limit_ms) if shape.limit_ms else length

    def _note_run(self, number: int, places: tuple[tuple[int, int], ...], expected_end: int) -> None:
        run, line = len(self._places), self._lines[number]
        self._places.append(places)
        self._run_line.append(number)
        self._expected_end.append(expected_end)
        for node, _ in places:
            if node >= 0:
                self._on_node[node].add(run)
        self._count(line, line.gpus)

    def _end(self, run: int) -> None:
        if run in self._over:
            return
        for node, gpus in self._places[run]:
            if node >= 0:
                self._on_node[node].discard(run)
                self._give(node, gpus)
        line = self._lines[self._run_line[run]]
        self._count(line, -line.gpus)

    def _count(self, line: EqualJobs, gpus: int) -> None:
        for at in line.path:
            self._used[at] += gpus
        if self._outlook.shared:
            tenant = (line.path, line.shape.kind.tenant)
            for branch in (tenant, (*tenant, line.shape.user)):
                self._held[branch] = self._held.get(branch, 0) + gpus

    def _keep_room(self, line: EqualJobs, now: int) -> bool:
        """Keep nodes for a blocked job from when on they are expected to hold it; whether any are."""
        head = self._heads[line.number]
        kept = self._kept.get(line.number)
        # Room that was kept stays kept until its time has come, and is then sought anew.
        if kept is None or kept[0] != head or kept[1] <= now:
            found = self._opening(line, now)
            if found is None:
                return False
            at, nodes = found
            # A search looks at all nodes; one that was due at once would be made anew with each end.
            kept = self._kept[line.number] = head, max(at, now + KEPT_LEAST_MS), nodes
        for node in kept[2]:
            self._kept_nodes[node] = min(kept[1], self._kept_nodes.get(node, INT_MAX))
        return True

    def _opening(self, line: EqualJobs, now: int) -> tuple[int, frozenset[int]] | None:
        """The first time at which the nodes of one model are expected to hold the job, and on which of them."""
        # Nodes of earlier reservations are left out, also where both jobs would fit: the engine holds one against the
        # other, too.
        best: tuple[int, frozenset[int]] | None = None
        self._searched += 1
        for part in line.parts:
            # Nodes are chosen one by one, the soonest first. The engine also tries to spare what is free now.
            at, nodes = now, []
            for size, group in groupby(line.pieces):
                many = len(list(group))
                known = self._openings.setdefault(size, {})
                found: list[tuple[int, int]] = []
                for node, its in enumerate(self._outlook.part_of):
                    if its == part and node not in self._kept_nodes and node not in nodes:
                        # Between two searches few nodes change, and all are asked in each.
                        opening, stands = known.get(node, (None, 0))
                        if stands <= now:
                            opening, stands = known[node] = self._free_from(node, size, now)
                        shut = self._shut_from.get(node, INT_MAX)
                        if opening is not None and max(opening, now) + line.forecast_ms <= shut:
                            found.append((max(opening, now), node))
                soonest = nsmallest(many, found)
                if len(soonest) < many:
                    break
                at = max(at, soonest[-1][0])
                nodes += [node for _, node in soonest]
            else:
                if best is None or at < best[0]:
                    best = at, frozenset(nodes)
        return best

    def _free_from(self, node: int, gpus: int, now: int) -> tuple[int | None, int]:
        """Time at which the node is expected to have so many GPUs free, None: never; and until when that stands."""
        free, size = self._free[node], self._outlook.now.nodes[node].gpus
        if free >= gpus:
            return now, INT_MAX
        if gpus > size:
            return None, INT_MAX
        ends = sorted([(self._expected(run, now), run) for run in self._on_node[node]])
        # Who outlives the first of them is expected to run longer than it was.
        stands = ends[0][0] if ends else INT_MAX
        if gpus == size:
            return ends[-1][0] if ends else None, stands
        for end, run in ends:
            free += sum([held for at, held in self._places[run] if at == node])
            if free >= gpus:
                return end, stands
        return None, stands

    def _expected(self, run: int, now: int) -> int:
        # As the engine forecasts it: who outlives what was expected is expected to run as long again.
        end = self._expected_end[run]
        if end > now:
            return end
        length = self._lines[self._run_line[run]].forecast_ms
        while end <= now:
            end += length
            length *= 2
        self._expected_end[run] = end
        return end


def _weighted(held: int, weight: int, gpus: int) -> int:
    return held * SHARE_UNIT // gpus * 1000 // weight if weight else INT_MAX
