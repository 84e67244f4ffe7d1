"""The wheel that is built from this checkout: what it leaves out, and what its commands say then."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORDS = [("demo",), ("lab", "pack", "default"), ("up",)]


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
    assert {path.parent.name for path in (unpacked / "tessera").glob("*/__init__.py")} == packages - {"testkit"}
    assert {path.name for path in unpacked.iterdir() if path.is_dir() and "." not in path.name} == {"tessera"}


@pytest.mark.parametrize("guest", ["tessera_local", "tessera_lab"])
def test_a_guest_has_a_wheel_of_its_own_with_all_of_its_modules(guest: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "services" / guest, tmp_path / guest, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "built")]
    subprocess.run(build, cwd=tmp_path / guest, check=True, capture_output=True)
    (wheel,) = (tmp_path / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info" not in name}
    kept = {str(path.relative_to(ROOT / "services")) for path in (ROOT / "services" / guest).rglob("*.py")}
    assert carried >= kept
    assert all(name.startswith(f"{guest}/") for name in carried)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_command_that_the_wheel_cannot_carry_out_says_so(unpacked: Path, words: tuple[str, ...]) -> None:
    # Without `site`, whose path files lead to the sources of this checkout, packages of their own included.
    path = os.pathsep.join([str(unpacked), str(ROOT / "schemas"), sysconfig.get_path("purelib")])
    said = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "tessera", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=unpacked,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert said.returncode == 5
    assert "run it from a checkout of the sources" in said.stderr
    assert "Traceback" not in said.stderr
