"""Programs for node that tests run: a copy of a folder with what its lock file pins, from whatever registry npm has."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

NODE, NPM = shutil.which("node"), shutil.which("npm")
NEEDS_NODE = pytest.mark.skipif(NODE is None or NPM is None, reason="no node and npm on PATH, which it needs")
SECONDS = 240.0


def installed(folder: Path, where: Path) -> Path:
    """A copy of `folder` in `where` after `npm ci`; the test is skipped where npm reaches no registry."""
    copy = Path(shutil.copytree(folder, where / folder.name, ignore=shutil.ignore_patterns("node_modules")))
    words = [str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    settings = {**os.environ, "npm_config_update_notifier": "false"}
    done = subprocess.run(words, cwd=copy, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install what {folder.name} needs: {done.stderr.strip().splitlines()[-1][:200]}")
    return copy


def check_lock(folder: Path) -> None:
    """The lock names no registry, and has a hash of every package."""
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for name, package in packages.items() if name)
