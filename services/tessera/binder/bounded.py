"""Bounded memory for what is remembered only to save calls."""

from collections import UserDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(UserDict[K, V]):
    """A dict that forgets everything once it would hold more than `most` keys."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)
