"""
An image with real launchers for pods of real nodes: torch with gloo and torchrun, DeepSpeed, JAX, Ray.

A root file system of Debian's packages, torch among them, with packages of PyPI in /opt/launchers as `launchers.lock`
pins them. Layers are made once for a pin, below `build/launchers` (minutes, 2.3 GB), and only where TESSERA_BUILD_ALL=1
asks for them.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.containers.node import NoNode, image_config

LAUNCHERS_IMAGE = "tessera.test/launchers:1"
LOCK, BUILT = Path(__file__).with_name("launchers.lock"), Path(__file__).parents[2] / "build" / "launchers"
DEBIAN = "python3,python3-distutils,python3-torch"
WHERE, FOR_DEEPSPEED, PROGRAMS = "opt/launchers", "opt/deepspeed", "app"
SITE = "lib/python3.11/site-packages"
ENVIRONMENT = [
    f"PATH=/{WHERE}/bin:/usr/bin:/bin",
    f"PYTHONPATH=/{WHERE}/{SITE}",
    "PYTHONUNBUFFERED=1",
]
SECONDS = 1500


def launchers_image(folder: Path, programs: Mapping[str, str]) -> Path:
    """An archive in the folder, of the image with these programs in /app. Raises NoNode where it is not to be had."""
    own, archive = folder / "programs.tar", folder / "image.tar"
    layers = {"root.tar": _root(), "packages.tar": _packages(), "programs.tar": own}
    with tarfile.open(own, "w") as tar:
        for name, program in programs.items():
            (folder / name).write_text(program)
            tar.add(folder / name, f"{PROGRAMS}/{name}")
    ids = [f"sha256:{_sha256(path)}" for path in layers.values()]
    config = image_config(ids, {"Env": ENVIRONMENT, "WorkingDir": f"/{PROGRAMS}"})
    manifest = [{"Config": "config.json", "RepoTags": [LAUNCHERS_IMAGE], "Layers": list(layers)}]
    with tarfile.open(archive, "w") as tar:
        for name, content in {"config.json": config, "manifest.json": manifest}.items():
            (folder / name).write_text(json.dumps(content))
            tar.add(folder / name, name)
        for name, path in layers.items():
            tar.add(path, name)
    return archive


def _root() -> Path:
    def make(layer: Path) -> None:
        words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={DEBIAN}", "--dpkgopt=force-unsafe-io"]
        _run(*words, "bookworm", str(layer))

    return _made("root", DEBIAN.encode(), make)


def _packages() -> Path:
    def make(layer: Path) -> None:
        packages = layer.parent / WHERE
        options = ("-q", "--ignore-installed", "--no-deps", "--require-hashes", "-r", str(LOCK))
        _run(sys.executable, "-m", "pip", "install", *options, "--prefix", str(packages))
        # DeepSpeed's pydantic is one that Ray refuses to start beside.
        (old := layer.parent / FOR_DEEPSPEED).mkdir(parents=True)
        shutil.move(packages / SITE / "pydantic", old / "pydantic")
        for script in (each for each in (packages / "bin").iterdir() if each.is_file()):
            first, _, rest = script.read_bytes().partition(b"\n")
            if first.startswith(b"#!") and b"python" in first:
                script.write_bytes(b"#!/usr/bin/python3\n" + rest)
        with tarfile.open(layer, "w") as tar:
            tar.add(packages, WHERE, filter=_of_root)
            tar.add(old, FOR_DEEPSPEED, filter=_of_root)

    return _made("packages", LOCK.read_bytes(), make)


def _made(name: str, pin: bytes, make: Callable[[Path], None]) -> Path:
    """The layer of this pin, made where it is not there."""
    layer = BUILT / f"{name}-{hashlib.sha256(pin).hexdigest()[:12]}.tar"
    if layer.exists():
        return layer
    if os.environ.get("TESSERA_BUILD_ALL") != "1":
        raise NoNode(f"{layer.relative_to(BUILT.parents[1])} is not there, and made only with TESSERA_BUILD_ALL=1")
    if shutil.which("mmdebstrap") is None or os.geteuid():
        raise NoNode("no mmdebstrap, or no right to run it: make container-engine installs it where root may")
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        partial = Path(folder) / "layer.tar"
        make(partial)
        partial.rename(layer)
    return layer


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise NoNode(f"{words[0]} {words[1]}: {done.stderr[-600:]}")


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    return info


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
