"""Index of millions of keys in some 16 bytes each: fingerprints of 64 bits, each with a number of 32 bits."""

import struct
from collections.abc import Iterator

_ENTRY = struct.Struct("<QI")
PER_BUCKET = 32


class KeyIndex:
    """
    A multimap of fingerprint to number, by linear hashing: one bucket is split at a time, so that nobody waits for all.

    A bucket is one bytes object of entries; it is searched whole, which at this size costs less than a dict's memory.
    """

    __slots__ = ("_base", "_buckets", "_count")

    def __init__(self) -> None:
        self._buckets: list[bytes] = [b""]
        self._base, self._count = 1, 0

    def __len__(self) -> int:
        return self._count

    def add(self, fingerprint: int, number: int) -> None:
        """Notes one more entry, also beside an equal one."""
        self._buckets[self._place(fingerprint)] += _ENTRY.pack(fingerprint, number)
        self._count += 1
        if self._count > PER_BUCKET * len(self._buckets):
            self._split()

    def remove(self, fingerprint: int, number: int) -> None:
        """Takes one such entry off; nothing without one."""
        place, entry = self._place(fingerprint), _ENTRY.pack(fingerprint, number)
        for at in _aligned(self._buckets[place], entry):
            bucket = self._buckets[place]
            self._buckets[place] = bucket[:at] + bucket[at + _ENTRY.size :]
            self._count -= 1
            return

    def find(self, fingerprint: int) -> Iterator[int]:
        """The numbers of a fingerprint."""
        bucket = self._buckets[self._place(fingerprint)]
        for at in _aligned(bucket, fingerprint.to_bytes(8, "little")):
            yield _ENTRY.unpack_from(bucket, at)[1]

    def _place(self, fingerprint: int) -> int:
        """Buckets below the one that is split next are split already: they go by one bit more."""
        place = fingerprint % (2 * self._base)
        return place if place < len(self._buckets) else place - self._base

    def _split(self) -> None:
        old = self._buckets[len(self._buckets) - self._base]
        self._buckets.append(b"")
        self._buckets[len(self._buckets) - 1 - self._base] = b""
        for fingerprint, number in _ENTRY.iter_unpack(old):
            self._buckets[self._place(fingerprint)] += _ENTRY.pack(fingerprint, number)
        if len(self._buckets) == 2 * self._base:
            self._base *= 2


def _aligned(bucket: bytes, wanted: bytes) -> Iterator[int]:
    """Positions of the bucket's entries that begin with the wanted bytes."""
    at = bucket.find(wanted)
    while at >= 0:
        if at % _ENTRY.size == 0:
            yield at
        at = bucket.find(wanted, at + 1)
