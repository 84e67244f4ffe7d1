"""A file system without room."""

from pathlib import Path


def fill(ballast: Path) -> None:
    """Take all the room there is."""
    with ballast.open("wb", buffering=0) as file:
        for size in (2**16, 2**12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
