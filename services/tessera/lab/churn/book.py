"""
State of a churn run as arrays that compiled code moves: one row per arrival, a heap of ends, a queue of waiting pods
for each class, and sums over time for each hour.

Pods of a class are equal, so only the first of each queue needs to be tested. Integers only.
"""

from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints
from tessera.engine.pricing.compiled import compiled_lean

HOUR_MS = 3_600_000
NEVER = -1
SERIAL_BITS = 23  # of an arrival, below its end in the heap
SERIAL_MASK = (1 << SERIAL_BITS) - 1

# Where in `now` each number lies.
CLOCK, HEAPED, ARRIVED, ENDED, REFUSED, WAITING, RUNNING_MILLI, WAITING_MILLI, LOST = range(9)
# What is added up per hour, each times milliseconds: thousandths of GPUs that run, that wait; pods that wait; F.
RAN, WAITED, WAITERS, FRAGMENTED = range(4)


class Book(NamedTuple):
    t: Ints  # class of each arrival
    at: Ints  # when it arrives, in ms
    life: Ints  # how long it runs, in ms
    end: Ints  # when it will have ended; NEVER before it starts and after it ended
    node: Ints  # where it runs; NEVER
    devices: Ints  # bits
    after: Ints  # the next in the queue of its class
    first: Ints  # (classes,): who waits longest; NEVER
    last: Ints  # (classes,)
    possible: Ints  # (classes,): 0 for what fits no node even when all are empty
    heap: Ints  # end << SERIAL_BITS | arrival; stale where `end` says otherwise
    now: Ints  # see CLOCK and so on
    hours: Ints  # (hours, 4), see RAN and so on


def open_book(t: Ints, at: Ints, life: Ints, possible: Ints, hours: int) -> Book:
    def nobody() -> Ints:
        return np.full(len(t), NEVER, np.int64)

    def empty() -> Ints:
        return np.full(len(possible), NEVER, np.int64)

    return Book(
        t, at, life, nobody(), nobody(), np.zeros(len(t), np.int64), nobody(), empty(), empty(), possible,
        np.zeros(2 * len(t), np.int64), np.zeros(9, np.int64), np.zeros((hours, 4), np.int64),
    )  # fmt: skip


@compiled_lean
def pass_time(book: Book, until: int) -> None:
    """Add up what is, until this moment, hour by hour."""
    now = book.now
    while now[CLOCK] < until:
        hour = now[CLOCK] // HOUR_MS
        step = min(until, (hour + 1) * HOUR_MS) - now[CLOCK]
        if hour < book.hours.shape[0]:
            book.hours[hour, RAN] += step * now[RUNNING_MILLI]
            book.hours[hour, WAITED] += step * now[WAITING_MILLI]
            book.hours[hour, WAITERS] += step * now[WAITING]
            book.hours[hour, FRAGMENTED] += step * now[LOST]
        now[CLOCK] += step


@compiled_lean
def push(book: Book, key: int) -> None:
    heap, at = book.heap, book.now[HEAPED]
    book.now[HEAPED] += 1
    while at > 0 and heap[(at - 1) // 2] > key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = key


@compiled_lean
def pop(book: Book) -> int:
    """The earliest end, then the earliest arrival."""
    heap = book.heap
    book.now[HEAPED] -= 1
    top: int = heap[0]
    size, at = book.now[HEAPED], 0
    key = heap[size]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return top


@compiled_lean
def next_end(book: Book) -> int:
    """Time of the next pod's end, or NEVER; forgets ends that were put off."""
    while book.now[HEAPED] > 0:
        key: int = book.heap[0]
        if book.end[key & SERIAL_MASK] == key >> SERIAL_BITS:
            return key >> SERIAL_BITS
        pop(book)
    return NEVER


@compiled_lean
def wait(book: Book, job: int, milli: int) -> None:
    t = book.t[job]
    if book.first[t] == NEVER:
        book.first[t] = job
    else:
        book.after[book.last[t]] = job
    book.last[t] = job
    book.now[WAITING] += 1
    book.now[WAITING_MILLI] += milli


@compiled_lean
def leave_queue(book: Book, t: int, milli: int) -> int:
    """The pod of the class that waits longest waits no more."""
    job: int = book.first[t]
    book.first[t] = book.after[job]
    book.now[WAITING] -= 1
    book.now[WAITING_MILLI] -= milli
    return job


@compiled_lean
def start(book: Book, job: int, node: int, devices: int, milli: int) -> None:
    book.node[job], book.devices[job] = node, devices
    book.end[job] = book.now[CLOCK] + book.life[job]
    book.now[RUNNING_MILLI] += milli
    push(book, book.end[job] << SERIAL_BITS | job)


@compiled_lean
def finish(book: Book, job: int, milli: int) -> None:
    book.node[job], book.end[job] = NEVER, NEVER
    book.now[RUNNING_MILLI] -= milli
    book.now[ENDED] += 1
