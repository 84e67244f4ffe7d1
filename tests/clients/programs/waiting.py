"""What the programs share: waiting, and telling which jobs they made."""

import json
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 60.0


def until(look: Callable[[], T], what: str) -> T:
    """What `look` finds, once it finds something. Raises TimeoutError."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.3)
    raise TimeoutError(f"{what}: not so after {SECONDS:g} s")


def tell(ended: object, cancelled: object) -> None:
    """The numbers of the job that ended by itself and of the one that was cancelled, for the test."""
    print(json.dumps({"ended": str(ended), "cancelled": str(cancelled)}))
