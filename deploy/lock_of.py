"""`python lock_of.py requirements.lock parts.toml PART…`: pins and hashes of these parts, for pip --require-hashes."""

import re
import sys
import tomllib
from pathlib import Path


def lock_of(lock: str, names: list[str]) -> str:
    """Blocks of the lock for these packages. Raises KeyError for one that is not pinned."""
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", lock, flags=re.MULTILINE)[1:]
    by_name = {block.split("==")[0]: re.sub(r"(?m)^\s*#.*\n?", "", block) for block in blocks}
    return "".join(by_name[name] for name in names)


if __name__ == "__main__":
    lock_file, parts_file, *wanted = sys.argv[1:]
    parts = tomllib.loads(Path(parts_file).read_text(encoding="utf-8"))
    print(lock_of(Path(lock_file).read_text(encoding="utf-8"), [name for part in wanted for name in parts[part]]))
