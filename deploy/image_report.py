"""
What is in the images: size over the base, layers that several share, packages; and an SBOM of each (CycloneDX).

One that does not stand on the base has no packages: a program of the standard library alone.

`python deploy/image_report.py IMAGE…` prints a table and writes build/sbom/NAME.cdx.json. Sizes are in MB (10^6 bytes).
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

SBOM = Path("build/sbom")
INSIDE = """
from importlib.metadata import distributions
for found in distributions():
    print(found.name + "==" + found.version)
"""
BASE_ARGUMENT = "ARG PYTHON_IMAGE="


def main(images: list[str]) -> None:
    """Print the table, write the SBOMs. Raises CalledProcessError for an image that is not there."""
    dockerfile = Path(__file__).with_name("Dockerfile").read_text()
    base = next(line for line in dockerfile.splitlines() if line.startswith(BASE_ARGUMENT)).removeprefix(BASE_ARGUMENT)
    base_layers = _layers(base)
    all_layers = {image: _layers(image) for image in images}
    on_base = [image for image, layers in all_layers.items() if layers[: len(base_layers)] == base_layers]
    own = {image: layers[len(base_layers) * (image in on_base) :] for image, layers in all_layers.items()}
    shared = Counter(layer for layers in own.values() for layer, _ in layers)
    print(f"{'image':32}{'over base':>10}{'shared':>8}{'alone':>8}  packages that not all have")
    packages = {image: _packages(image) if image in on_base else [] for image in images}
    common = set.intersection(*(set(packages[image]) for image in on_base))
    for image, layers in own.items():
        whole = sum(size for _, size in layers)
        alone = sum(size for layer, size in layers if shared[layer] == 1)
        more = ", ".join(sorted(set(packages[image]) - common)) or "none"
        print(f"{image:32}{whole / 1e6:>10.1f}{(whole - alone) / 1e6:>8.1f}{alone / 1e6:>8.1f}  {more}")
        _write_sbom(image, packages[image])
    print(f"all have: {', '.join(sorted(common))}")
    print(f"base: {base}; SBOMs are in {SBOM}")


def _layers(image: str) -> list[tuple[str, int]]:
    """Digest and size of each layer, lowest first."""
    digests = json.loads(_docker("image", "inspect", image, "--format", "{{json .RootFS.Layers}}"))
    lines = _docker(
        "history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image
    ).splitlines()
    steps = [(int(line.split("\t")[0]), line.split("\t", 1)[1]) for line in lines]
    # A step that only sets something has no layer; one that adds nothing has an empty one, so that sizes come last.
    sizes = [size for size, step in reversed(steps) if size or not _sets_only(step)]
    return list(zip(digests, sizes[-len(digests) :], strict=True))


def _sets_only(step: str) -> bool:
    words = ("ENV", "LABEL", "USER", "EXPOSE", "ENTRYPOINT", "HEALTHCHECK", "CMD", "ARG", "WORKDIR")
    return any(f"#(nop)  {word}" in step or step.startswith(f"{word} ") for word in words)


def _packages(image: str) -> list[str]:
    return sorted(_docker("run", "--rm", "--entrypoint", "python", image, "-c", INSIDE).split())


def _write_sbom(image: str, packages: list[str]) -> None:
    SBOM.mkdir(parents=True, exist_ok=True)
    target = SBOM / f"{image.rpartition('/')[2].partition(':')[0]}.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "-", "--output-reproducible", "-o", str(target)]
    subprocess.run(command, input="\n".join(packages), text=True, check=True, capture_output=True)


def _docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
