"""
Files that people wrote, and files with secrets: read as UTF-8, replaced in one step, readable by their owner alone.
"""

import os
from pathlib import Path

from tessera.kernel.errors import StartupError


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one that nobody else can read at any time; whoever reads sees the old one or all of the new."""
    fresh = path.with_suffix(f"{path.suffix}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


class UnreadableFile(StartupError):
    """The file cannot be read as text; one sentence that names it and the way out."""


def read_text(path: Path, newline: str | None = None) -> str:
    """
    The whole file, its lines ended by `\\n`, with `newline=""` as they are ended there.

    Raises UnreadableFile for one that is missing, a directory, not ours to read or not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableFile(f"{path}: cannot be read ({why}); name another file") from error
