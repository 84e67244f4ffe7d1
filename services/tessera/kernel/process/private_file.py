"""Files with passwords and tokens: readable by their owner alone, and replaced in one step."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one that nobody else can read at any time; whoever reads sees the old one or all of the new."""
    fresh = path.with_suffix(f"{path.suffix}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)
