"""
Where the golden bytes are, and `python -m tests.contract.golden_files`: add those of new types.

A golden file is what some released build stored. It is added once and never changed: the list of hashes tells.
"""

import hashlib
from pathlib import Path

from tests.contract.samples import samples

FOLDER = Path(__file__).parent / "golden"
HASHES = FOLDER / "sha256sums"


def golden(id_: str) -> Path:
    """The file of a registered id such as `fact.pods_made.v1`."""
    name, _, version = id_.rpartition(".v")
    return FOLDER / f"v{version}" / f"{name}.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listed() -> dict[str, str]:
    """Path below the golden folder to hash, as committed."""
    lines = HASHES.read_text(encoding="utf-8").splitlines() if HASHES.exists() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def add() -> list[str]:
    """Write the bytes of every sample that has no file yet; existing files and hashes stay as they are."""
    hashes, added = listed(), []
    for id_, value in samples().items():
        path = golden(id_)
        name = path.relative_to(FOLDER).as_posix()
        if path.exists() or name in hashes:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())
        hashes[name] = sha256(path)
        added.append(name)
    HASHES.write_text("".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)), encoding="utf-8")
    return added


if __name__ == "__main__":
    print("\n".join(add()) or "nothing to add")
