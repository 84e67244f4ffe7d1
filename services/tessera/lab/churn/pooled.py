"""
The upper bound: the same arrivals, the same rule, but all GPUs, CPU and memory of the cluster in one pool.

Nodes, devices and models are left away, so nothing is ever stranded and no room is ever in the wrong place: what is
lost against the offered load is only what the totals cannot hold. No placement can do better in the long run; within
a window a policy may be ahead by work that it had put off before.
"""

from tessera.engine.pricing.arrays import Classes, Ints
from tessera.engine.pricing.compiled import compiled, compiled_lean
from tessera.lab.churn.book import (
    ARRIVED,
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

CPU, MEMORY, GPU = range(3)


@compiled_lean
def holds(free: Ints, classes: Classes, t: int) -> bool:
    gpu = classes.devices[t] * classes.milli[t]
    short: bool = free[CPU] < classes.cpu[t] or free[MEMORY] < classes.memory[t] or free[GPU] < gpu
    return not short


@compiled_lean
def take_from(free: Ints, classes: Classes, t: int) -> None:
    free[CPU] -= classes.cpu[t]
    free[MEMORY] -= classes.memory[t]
    free[GPU] -= classes.devices[t] * classes.milli[t]


@compiled_lean
def give_to(free: Ints, classes: Classes, t: int) -> None:
    free[CPU] += classes.cpu[t]
    free[MEMORY] += classes.memory[t]
    free[GPU] += classes.devices[t] * classes.milli[t]


@compiled
def fill_pool(free: Ints, classes: Classes, book: Book) -> None:
    while True:
        job, found = NEVER, NEVER
        for t in range(book.first.shape[0]):
            head = book.first[t]
            if head != NEVER and (job == NEVER or head < job) and holds(free, classes, t):
                job, found = head, t
        if job == NEVER:
            return
        milli = classes.devices[found] * classes.milli[found]
        leave_queue(book, found, milli)
        take_from(free, classes, found)
        start(book, job, 0, 0, milli)


@compiled
def run_pool(free: Ints, classes: Classes, book: Book, stop_ms: int) -> None:
    """All that happens before `stop_ms`; `free` is what the pool has left of each resource."""
    while True:
        ends, job = next_end(book), book.now[ARRIVED]
        arrives = book.at[job] if job < book.at.shape[0] else NEVER
        if ends != NEVER and ends < stop_ms and (arrives == NEVER or ends <= arrives):
            pass_time(book, ends)
            ended = pop(book) & SERIAL_MASK
            give_to(free, classes, book.t[ended])
            finish(book, ended, classes.devices[book.t[ended]] * classes.milli[book.t[ended]])
            fill_pool(free, classes, book)
        elif arrives != NEVER and arrives < stop_ms:
            pass_time(book, arrives)
            book.now[ARRIVED] += 1
            t = book.t[job]
            if not book.possible[t]:
                book.now[REFUSED] += 1
            elif holds(free, classes, t):
                take_from(free, classes, t)
                start(book, job, 0, 0, classes.devices[t] * classes.milli[t])
            else:
                wait(book, job, classes.devices[t] * classes.milli[t])
        else:
            pass_time(book, stop_ms)
            return
