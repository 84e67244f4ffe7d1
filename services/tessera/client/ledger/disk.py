"""Files of a backup: their bytes must be on the disk, and be found again as they were written."""

import hashlib
import os
from pathlib import Path

from tessera.client.outcomes import Exit, Failure


def sync_to_disk(path: Path) -> None:
    """Return once the file, or the names in the directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Hash of the file's bytes. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Raises Failure for a file that is missing, or is not what was written."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{path.name}: cannot be read ({error.strerror}); find a copy") from error
    if found != sha256:
        raise Failure(Exit.FAILED, f"{path.name}: is not what was written; find another copy of it")
