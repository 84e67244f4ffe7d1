"""
A queue that may reorder: which of the waiting pods goes next.

Up to `waiting` pods are chosen from; whenever there are as many, one is placed: the one whose price exceeds most what
its best node loses by it, per GPU. So a pod for which a place is perfect goes first, and one that would spoil a node
waits for a better one. Nobody is passed by more than `delay` arrivals: then it goes, wherever that is. A pod that fits
nowhere is dropped when it is met, since nothing leaves; nothing is dropped that fits. A window of one is the order of
arrival.
"""

from typing import NamedTuple, Protocol

from tessera.engine.placement.fits import kind_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.cluster import gang_for
from tessera_lab.pack.learning import Scoring
from tessera_lab.traces.alibaba import TracePod

LEAST_MILLI = 200  # a smaller share counts as one, else the smallest would always go first


class Window(NamedTuple):
    """Number of pods that may wait, and of later arrivals that may pass one of them."""

    waiting: int = 64
    delay: int = 256


class Placing(Protocol):
    """Placement of the arrivals of a window."""

    capacity: FreeCapacity
    scoring: Scoring

    def place(self, pod: TracePod, number: int) -> None: ...


class WaitingPods:
    """Waiting pods with the numbers of their arrivals, the oldest first."""

    def __init__(self, window: Window, filling: Placing) -> None:
        self._window, self._filling = window, filling
        self.waiting: list[tuple[TracePod, int]] = []

    def join(self, pod: TracePod, arrival: int, last: bool) -> None:
        """A pod arrives; whoever must go now is placed, after the last arrival everybody."""
        self.waiting.append((pod, arrival))
        while self.waiting:
            if arrival - self.waiting[0][1] >= self._window.delay or self._window.waiting == 1:
                at = 0
            elif len(self.waiting) >= self._window.waiting or last:
                at = self.next_to_go()
            else:
                return
            self._filling.place(*self.waiting.pop(at))

    def next_to_go(self) -> int:
        """Place in line of the pod with the largest gain per GPU, of equals the oldest; one that fits nowhere first."""
        best, highest, met = -1, 0, set[TracePod]()
        for at, (pod, _) in enumerate(self.waiting):
            if pod in met:
                continue
            met.add(pod)
            need = gang_for(pod)[0].need
            node = self._filling.capacity.table.ranking(kind_of((need,))).best()
            if node is None:
                return at
            gain = (self._filling.scoring.price(need) - node[0]) * 1000 // max(pod.total_gpu_milli, LEAST_MILLI)
            if best < 0 or gain > highest:
                best, highest = at, gain
        return best
