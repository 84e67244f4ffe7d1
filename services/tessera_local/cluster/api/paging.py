"""
Long lists in pages: every page is of the version of the first, as the API's are.

What is left of the last few lists is kept; who asks for a page of an older one is told to begin anew (410).
"""

from collections import OrderedDict

from tessera.kernel.ports import ApiError
from tessera_local.cluster.objects.shelf import Version

_LISTS = 16


class Pages:
    """Cuts lists; a place in one is `number:offset`, where the list goes on."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, tuple[list[Version], str]] = OrderedDict()
        self._number = 0

    def first(self, found: list[Version], version: str, limit: int) -> tuple[list[Version], str, str]:
        """The first objects, the version of the list, and where it goes on ("": nowhere)."""
        if not 0 < limit < len(found):
            return found, version, ""
        self._number += 1
        self._lists[str(self._number)] = found, version
        if len(self._lists) > _LISTS:
            self._lists.popitem(last=False)
        return found[:limit], version, f"{self._number}:{limit}"

    def next(self, place: str, limit: int) -> tuple[list[Version], str, str]:
        """Raises ApiError 410 when the list is not kept any more."""
        number, _, offset = place.partition(":")
        if number not in self._lists or not offset.isdecimal():
            raise ApiError(410, "Expired", "The provided continue parameter is too old")
        (found, version), start = self._lists[number], int(offset)
        end = start + limit if limit > 0 else len(found)
        return found[start:end], version, f"{number}:{end}" if end < len(found) else ""

    def forget(self) -> None:
        """Forgets old list pages, as the server's compaction does."""
        self._lists.clear()
