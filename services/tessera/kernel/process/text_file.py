"""Text files that people wrote: UTF-8, with or without the byte-order mark that some editors put before it."""

from pathlib import Path

from tessera.kernel.errors import StartupError


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
