"""
Time passes: pods end, arrive, start or wait. The rule for waiting: first come, first served, and whoever does not fit
is passed over (best effort). At one moment ends come before arrivals.

What waits fits nowhere: it is tested when it arrives, and again on each node where room appears. So after an end only
that node is looked at, and whoever starts there does so in order of arrival.
"""

from tessera.engine.pricing.arrays import Ints
from tessera.engine.pricing.choosing import Core, best_node, put, release
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.fitting import fits
from tessera.engine.pricing.fragmentation import PublishedWorkload, fragmented
from tessera.lab.churn.book import (
    ARRIVED,
    LOST,
    NEVER,
    REFUSED,
    SERIAL_MASK,
    Book,
    finish,
    leave_queue,
    next_end,
    pass_time,
    pop,
    start,
    wait,
)


@compiled
def measure_again(core: Core, book: Book, measure: PublishedWorkload, by_node: Ints, n: int) -> None:
    """The fragmentation of a node that changed; `by_node` is what it was."""
    book.now[LOST] -= by_node[n]
    by_node[n] = fragmented(core.nodes, measure, n)
    book.now[LOST] += by_node[n]


@compiled
def fill(core: Core, book: Book, n: int) -> None:
    """Start on a node where room appeared what waits and fits, in order of arrival."""
    nodes, classes = core.nodes, core.classes
    while True:
        job, found = NEVER, NEVER
        for t in range(book.first.shape[0]):
            head = book.first[t]
            if head != NEVER and (job == NEVER or head < job) and fits(nodes, classes, t, n):
                job, found = head, t
        if job == NEVER:
            return
        milli = classes.devices[found] * classes.milli[found]
        leave_queue(book, found, milli)
        start(book, job, n, put(core, found, n), milli)


@compiled
def end_one(core: Core, book: Book, measure: PublishedWorkload, by_node: Ints) -> None:
    job = pop(book) & SERIAL_MASK
    t, n = book.t[job], book.node[job]
    release(core, t, n, book.devices[job])
    finish(book, job, core.classes.devices[t] * core.classes.milli[t])
    fill(core, book, n)
    measure_again(core, book, measure, by_node, n)


@compiled
def arrive(core: Core, book: Book, measure: PublishedWorkload, by_node: Ints) -> None:
    job = book.now[ARRIVED]
    book.now[ARRIVED] += 1
    t = book.t[job]
    milli = core.classes.devices[t] * core.classes.milli[t]
    if not book.possible[t]:
        book.now[REFUSED] += 1
        return
    n = best_node(core, t)
    if n < 0:
        wait(book, job, milli)
        return
    start(book, job, n, put(core, t, n), milli)
    measure_again(core, book, measure, by_node, n)


@compiled
def run_until(
    core: Core, book: Book, measure: PublishedWorkload, by_node: Ints, stop_ms: int, stop_arrival: int
) -> None:
    """All that happens before `stop_ms`, but no arrival from number `stop_arrival` on: before that one it returns."""
    while True:
        ends, job = next_end(book), book.now[ARRIVED]
        arrives = book.at[job] if job < book.at.shape[0] else NEVER
        if ends != NEVER and ends < stop_ms and (arrives == NEVER or ends <= arrives):
            pass_time(book, ends)
            end_one(core, book, measure, by_node)
        elif arrives != NEVER and arrives < stop_ms:
            if job >= stop_arrival:
                return
            pass_time(book, arrives)
            arrive(core, book, measure, by_node)
        else:
            pass_time(book, stop_ms)
            return
