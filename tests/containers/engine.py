"""
A container engine: the one that is there, or the distribution's, started for as long as the tests run.

`python -m tests.containers.engine COMMAND ...` runs a command beside one, and without where none can run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 180.0


class NoEngine(Exception):
    """None runs and none can be started here; the text says why."""


def docker(*words: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the engine's command line. Raises RuntimeError with what it printed when it fails, if `check`."""
    done = run("docker", *words, timeout=timeout)
    if check and done.returncode:
        raise RuntimeError(f"docker {' '.join(words)}: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done


def run(*words: str, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    """A program's end and output; `more` are environment variables. The builder is the engine's own, as 1.29 has it."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0", **more}
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


def answers() -> bool:
    """Tells whether an engine answers where DOCKER_HOST, or the default, says."""
    return shutil.which("docker") is not None and docker("version", check=False, timeout=120).returncode == 0


@contextmanager
def running() -> Iterator[str]:
    """
    An engine at `DOCKER_HOST`; says in words which one. One that was started here is ended with the block.

    Raises NoEngine.
    """
    if answers():
        yield f"the engine at {os.environ.get('DOCKER_HOST', 'its usual socket')}"
        return
    if shutil.which("dockerd") is None or shutil.which("docker") is None:
        raise NoEngine("no container engine answers, and dockerd is not installed: see `make container-engine`")
    if os.geteuid():
        raise NoEngine("no container engine answers, and only root can start one")
    # What the engine could not let go of stays behind, which fails no test.
    with tempfile.TemporaryDirectory(prefix="tessera-engine-", ignore_cleanup_errors=True) as folder:
        yield from _started(Path(folder))


def _started(folder: Path) -> Iterator[str]:
    socket = f"unix://{folder}/docker.sock"
    words = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-H", socket]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*words, "--pidfile", f"{folder}/pid"], stdout=log, stderr=log)
    os.environ["DOCKER_HOST"] = socket
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace").splitlines()[-3:]
                raise NoEngine(f"dockerd does not start here: {' | '.join(said)}")
            time.sleep(0.3)
        yield "an engine of the distribution's packages, started for these tests"
    finally:
        process.terminate()
        process.wait(START_SECONDS)
        del os.environ["DOCKER_HOST"]
        _unmount_below(folder)


def _unmount_below(folder: Path) -> None:
    """The engine leaves its network's name space mounted, so that the folder could not be removed."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in reversed(mounted):
        if point.startswith(f"{folder}/"):
            run("umount", point)


def _run_beside(words: list[str]) -> int:
    try:
        with running() as which:
            print(f"containers: {which}", flush=True)
            return subprocess.call(words)
    except NoEngine as why:
        print(f"containers: {why}", flush=True)
        return subprocess.call(words)


if __name__ == "__main__":
    sys.exit(_run_beside(sys.argv[1:]))
