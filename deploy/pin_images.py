"""
Digests of the images of an installation, so that a tag that is moved brings no other program.

`make digests` asks the registries through Docker and writes two files: values for the chart (`helm … -f
deploy/digests.yaml`) and variables for compose and the build (`docker compose --env-file deploy/digests.env`).
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
VALUES = ROOT / "deploy/helm/tessera/values.yaml"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
COMPOSE = re.compile(r"\$\{(TESSERA_[A-Z]+_IMAGE):-([^}@]+)\}")
PYTHON = re.compile(r"^ARG PYTHON_IMAGE=(\S+)$", re.MULTILINE)


def digest_of(image: str) -> str:
    """Digest that the registry has for an image, of all its platforms together."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    digest = said.stdout.strip()
    if said.returncode or not DIGEST.fullmatch(digest):
        raise SystemExit(f"{image}: {said.stderr.strip() or 'no digest'}; is it pushed, and does docker reach it?")
    return digest


def chart_values(values: Mapping[str, object], services: list[str], tag: str, digest: Callable[[str], str]) -> str:
    """Values of the chart by which each image is taken by its digest."""
    image: Mapping[str, str] = values["image"]  # type: ignore[assignment]
    registry = f"{image['registry']}/" if image["registry"] else ""
    ours = {name: digest(f"{registry}{image['repository']}-{name}:{tag}") for name in services}
    servers = {name: pinned(values[name]["image"], digest) for name in ("nats", "redis")}  # type: ignore[index]
    return yaml.safe_dump({"image": {"digests": ours}, **{name: {"image": said} for name, said in servers.items()}})


def compose_variables(compose: str, dockerfile: str, digest: Callable[[str], str]) -> str:
    """Variables of the images that docker-compose.yml and the Dockerfile take from others."""
    (python,) = PYTHON.findall(dockerfile)
    found = {**dict(COMPOSE.findall(compose)), "PYTHON_IMAGE": python}
    return "".join(f"{name}={pinned(image, digest)}\n" for name, image in sorted(found.items()))


def pinned(image: str, digest: Callable[[str], str]) -> str:
    """The image with its digest behind the tag; one that has a digest stays."""
    return image if "@" in image else f"{image}@{digest(image)}"


def main(arguments: list[str]) -> int:
    """Write both files: for the version, and the services, of our images."""
    version, *services = arguments
    values = yaml.safe_load(VALUES.read_text())
    compose, dockerfile = (ROOT / "docker-compose.yml").read_text(), (ROOT / "deploy/Dockerfile").read_text()
    (ROOT / "deploy/digests.env").write_text(compose_variables(compose, dockerfile, digest_of))
    (ROOT / "deploy/digests.yaml").write_text(chart_values(values, services, version, digest_of))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
