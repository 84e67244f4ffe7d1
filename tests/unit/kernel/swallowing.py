"""Work that swallows cancellations."""

import asyncio


class Swallowing:
    """A loop that loses its first `lost` cancellations, as `asyncio.wait_for` of Python 3.11 may; None: all of them."""

    def __init__(self, lost: int | None) -> None:
        self.left, self.swallowed, self.ended = lost, 0, False

    async def run(self) -> None:
        try:
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if self.left is not None and self.swallowed >= self.left:
                        raise
                    self.swallowed += 1
        finally:
            self.ended = True
