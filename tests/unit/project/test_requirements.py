"""What is pinned is what the project asks for, from wherever the user's package index is."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _asked(lines: list[str]) -> set[str]:
    return {re.split(r"\s+#", line)[0].replace('"', "'").strip() for line in lines if line.strip() and line[0] != "#"}


def test_requirements_in_repeats_pyproject_exactly():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    for guest in ("tessera_local", "tessera_lab"):
        extras += tomllib.loads((ROOT / "services" / guest / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = {line for line in _asked([*project["dependencies"], *extras]) if not line.startswith("tessera-")}
    listed = (ROOT / "requirements.in").read_text().split("\n\n")[0].splitlines()
    assert declared == _asked(listed)


def test_the_command_and_the_sdk_alone_need_no_server_no_redis_and_no_numpy():
    dependencies = " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    assert not re.findall(r"redis|numpy|nats-server|aiohttp|kubernetes|uvloop", dependencies)


def test_every_requirement_is_pinned_with_a_hash_and_no_address():
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", lock, flags=re.MULTILINE)[1:]
    assert pins
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in lock
    assert "index-url" not in lock.replace("--no-emit-index-url", "")


def test_every_package_that_is_asked_for_is_pinned():
    asked = [line for line in (ROOT / "requirements.in").read_text().splitlines() if line and line[0] != "#"]
    names = {re.split(r"[\[<>=;\s]", line)[0].lower() for line in asked}
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert names <= pinned
