"""Things that the services of a process share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Shared:
    """Things of a process, made by the first of its services that asks for them."""

    def __init__(self) -> None:
        self._made, self._making = dict[str, Any](), asyncio.Lock()

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of that name; `make` is called while there is none, and again where it raised."""
        async with self._making:
            if name not in self._made:
                self._made[name] = await make()
            return cast(T, self._made[name])
