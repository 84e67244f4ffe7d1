"""
Stand-ins for the images that the Dockerfile and the compose file name, for machines that reach no image registry.

One root file system from Debian's packages carries them all; on it come a CPython and the Go of this machine, the
nats-server of the Python package, the distribution's Redis and Prometheus. An image that the engine has already is left
as it is.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tessera_local.servers import find_nats_server
from tests.containers.engine import docker

ROOT = "tessera-stand-in/debian:bookworm"
GO = "golang:1.26-bookworm"
PYTHONS = ("python:3.12-slim-bookworm", "python:3.11-slim-bookworm")
NATS, REDIS, PROMETHEUS = "nats:2.15-alpine", "redis:7-bookworm", "prom/prometheus:v2.55.1"
PACKAGES = "ca-certificates busybox-static redis-server libssl3 libffi8 libsqlite3-0 libreadline8 libbz2-1.0 libuuid1"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NOT_NEEDED = shutil.ignore_patterns("test", "tests", "idlelib", "__pycache__", "config-3.*", "*.a", "turtledemo")
FIND_PREFIX = "import sys; print(sys.base_prefix, '%d.%d' % sys.version_info[:2])"


class NoStandIn(Exception):
    """This machine cannot make one; the text says why."""


def ensure(image: str) -> None:
    """Have the engine hold the image: as it is, pulled, or made here. Raises NoStandIn."""
    if has(image):
        return
    print(f"{image}: no image registry is asked, a stand-in is made here", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        _MAKERS[image](image, Path(folder))


def has(image: str) -> bool:
    """Tells whether the engine holds an image of this name."""
    return docker("image", "inspect", image, check=False).returncode == 0


def _ensure_root() -> None:
    """Debian's smallest system with what the programs on it need, and the certificates that this machine trusts."""
    if has(ROOT):
        return
    if shutil.which("mmdebstrap") is None:
        raise NoStandIn("mmdebstrap is not installed: make container-engine installs it where root may")
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder) / "root.tar"
        words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES.replace(' ', ',')}"]
        # A file system that is made only to be packed need not be synced file by file.
        words += ["--dpkgopt=force-unsafe-io", f"--customize-hook=copy-in {CERTIFICATES} /etc/ssl/certs"]
        subprocess.run([*words, "bookworm", str(tar)], check=True, timeout=500)
        docker("import", str(tar), ROOT)


def _build(image: str, folder: Path, *lines: str) -> None:
    _ensure_root()
    (folder / "Dockerfile").write_text("\n".join([f"FROM {ROOT}", *lines]) + "\n")
    docker("build", "-q", "-t", image, str(folder), timeout=300)


def _python(image: str, folder: Path) -> None:
    version = image.removeprefix("python:").split("-", 1)[0]
    prefix = _prefix(version)
    target = folder / "local"
    for part in ("bin", "lib"):
        (target / part).mkdir(parents=True)
    for program in sorted((prefix / "bin").iterdir()):
        if program.name.startswith("python"):
            shutil.copy2(program, target / "bin" / program.name, follow_symlinks=False)
    for library in sorted((prefix / "lib").glob("libpython*.so*")):
        shutil.copy2(library, target / "lib" / library.name, follow_symlinks=False)
    library = f"lib/python{version}"
    shutil.copytree(prefix / library, target / library, symlinks=True, ignore=_only_pip(prefix / library))
    _build(image, folder, "COPY local /usr/local", "RUN ldconfig", "ENV LANG=C.UTF-8", 'CMD ["python3"]')


def _only_pip(library: Path) -> Callable[[str, list[str]], set[str]]:
    """Leave out what no program needs, and packages that somebody installed on this machine."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == library / "site-packages":
            return {name for name in names if not name.startswith("pip")}
        return set(NOT_NEEDED(folder, names))

    return ignore


def _prefix(version: str) -> Path:
    """Where a CPython of this version is installed as a whole. Raises NoStandIn."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    candidates = [path for root in roots for path in sorted(root.glob(f"{version}.*/bin/python{version}"))]
    on_path = shutil.which(f"python{version}")
    for program in [*candidates, *([Path(on_path)] if on_path else []), Path(sys.executable)]:
        done = subprocess.run([str(program), "-c", FIND_PREFIX], capture_output=True, text=True, check=False)
        prefix, _, found = done.stdout.strip().partition(" ")
        if found == version and not prefix.startswith("/usr/"):
            return Path(prefix)
        if found == version and Path(prefix) == Path("/usr/local"):
            return Path(prefix)
    raise NoStandIn(f"no CPython {version} of its own folder on this machine, to make python:{version} from")


def _go(image: str, folder: Path) -> None:
    """What builds a program of the standard library alone."""
    go = shutil.which("go")
    if go is None:
        raise NoStandIn("no go on the path, to make an image of Go from")
    root = Path(subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip())
    for part in ("bin", "pkg/tool", "pkg/include", "src"):
        shutil.copytree(root / part, folder / "go" / part, symlinks=True, ignore=shutil.ignore_patterns("testdata"))
    shutil.copy2(root / "VERSION", folder / "go" / "VERSION")
    _build(image, folder, "COPY go /usr/local/go", "ENV PATH=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin")


def _nats(image: str, folder: Path) -> None:
    shutil.copy2(find_nats_server(), folder / "nats-server")
    _build(
        image,
        folder,
        "COPY nats-server /usr/local/bin/nats-server",
        "RUN ln -s /bin/busybox /usr/local/bin/wget",
        'ENTRYPOINT ["nats-server"]',
    )


def _redis(image: str, folder: Path) -> None:
    _build(image, folder, 'CMD ["redis-server"]')


def _prometheus(image: str, folder: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        raise NoStandIn("no prometheus on the path: `make prometheus` installs it where root may")
    shutil.copy2(program, folder / "prometheus")
    _build(
        image,
        folder,
        "COPY prometheus /bin/prometheus",
        "RUN ln -s /bin/busybox /usr/local/bin/wget && mkdir /prometheus && chown 65534:65534 /prometheus",
        'ENTRYPOINT ["/bin/prometheus"]',
    )


_MAKERS: dict[str, Callable[[str, Path], None]] = {
    **dict.fromkeys(PYTHONS, _python),
    GO: _go,
    NATS: _nats,
    REDIS: _redis,
    PROMETHEUS: _prometheus,
}
