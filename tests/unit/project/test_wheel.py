"""The wheel that is built from this checkout: what it leaves out, and what its commands say then."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hatchling's own build, in a copy of what it reads, unpacked as an installation would be."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "services", folder / "services", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "built"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_has_every_package_but_the_tools_of_development(unpacked: Path) -> None:
    packages = {path.parent.name for path in (ROOT / "services/tessera").glob("*/__init__.py")}
    assert {path.parent.name for path in (unpacked / "tessera").glob("*/__init__.py")} == packages - {"lab", "testkit"}


@pytest.mark.parametrize("words", [("demo",), ("lab", "pack", "default")], ids=" ".join)
def test_a_command_that_the_wheel_cannot_carry_out_says_so(unpacked: Path, words: tuple[str, ...]) -> None:
    path = os.pathsep.join([str(unpacked), str(ROOT / "schemas")])
    said = subprocess.run(
        [sys.executable, "-P", "-m", "tessera", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=unpacked,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 5
    assert "run it from a checkout of the sources" in said.stderr
    assert "Traceback" not in said.stderr
