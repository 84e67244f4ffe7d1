"""What `make images` builds, looked at from outside and run by testcontainers."""

import json
import time

import pytest
from testcontainers.core.container import DockerContainer

from tessera_schemas.shard.services import SERVICES
from tests.containers.compose import ROOT
from tests.containers.engine import docker, run

pytestmark = pytest.mark.timeout(900)
VERSION = "0.4.0"
FORBIDDEN = ("pytest", "mypy", "hypothesis", "ruff", "matplotlib", "testcontainers")
MISSING_PART = 5
IMAGES = (*SERVICES, "gateway-logs", "client")
STEPS_MEGABYTES = 10
MEGABYTES = dict.fromkeys(SERVICES, 66.0) | {"binder": 168, "gateway-logs": 144, "reclamation": 374, "client": 184}
MEGABYTES |= dict.fromkeys(("admission", "queueing", "scheduler", "preemption", "gateway"), 120.0)
"""Over the base, at most; docs/install.md says why the last four hold more."""


def _image(name: str) -> str:
    return f"tessera-{name}:{VERSION}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_without_root_on_a_root_it_cannot_write(images: str, name: str) -> None:
    """Alone it comes as far as the missing NATS, and says so in one line."""
    container = DockerContainer(_image(name)).with_tmpfs_mount("/tmp").with_kwargs(read_only=True, cap_drop=["ALL"])
    with container:
        wrapped = container.get_wrapped_container()
        code = wrapped.wait(timeout=300)["StatusCode"]
        said = wrapped.logs().decode()
    assert code == MISSING_PART, said
    assert said.startswith("error: NATS monitoring at ")
    assert "Traceback" not in said


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_says_what_it_is_and_runs_as_nobody_in_particular(images: str, name: str) -> None:
    said = json.loads(docker("image", "inspect", _image(name)).stdout)[0]["Config"]
    assert said["User"] == "10001:10001"
    assert said["Entrypoint"] == ["tessera"]
    assert said["Labels"]["org.opencontainers.image.version"] == VERSION
    assert said["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert len(said["Labels"]["org.opencontainers.image.revision"]) == 40 or not (ROOT / ".git").exists()
    assert name == "client" or "/livez" in " ".join(said["Healthcheck"]["Test"])


def test_the_step_runner_is_alone_in_its_image_and_installs_itself_as_nobody_in_particular(images: str) -> None:
    said = json.loads(docker("image", "inspect", _image("steps")).stdout)[0]
    assert said["Config"]["User"] == "65532:65532"
    assert len(said["RootFS"]["Layers"]) == 1
    hardened = ("--read-only", "--cap-drop=ALL", "--network=none", "--tmpfs=/tessera:mode=1777,exec")
    done = docker("run", "--rm", *hardened, _image("steps"), "install", "/tessera", check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly("two minutes")
def test_the_report_names_every_package_and_writes_an_sbom(images: str) -> None:
    done = run("make", "-C", str(ROOT), "image-report", timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith("tessera-")}
    assert set(rows) == {_image(name) for name in (*IMAGES, "steps")}
    assert float(rows[_image("steps")][1]) <= STEPS_MEGABYTES
    for name, limit in MEGABYTES.items():
        assert float(rows[_image(name)][1]) <= limit
    for name in IMAGES:
        sbom = json.loads((ROOT / "build" / "sbom" / f"tessera-{name}.cdx.json").read_text())
        packages = {part["name"].lower() for part in sbom["components"]}
        assert {"tessera-scheduler", "tessera-schemas", "aiohttp"} <= packages
        assert not packages & set(FORBIDDEN)
        assert ("kubernetes" in packages) == (name in ("binder", "reclamation", "client"))
        assert ("numba" in packages) == (name == "reclamation")
        assert ("obstore" in packages) == (name == "gateway-logs")


def test_the_probe_answers_for_a_process_that_lives_and_for_no_other(images: str) -> None:
    """A server in place of the service, that gives what it is told to: only a 200 is well."""
    serve = (
        "import http.server as h, os\n"
        "class A(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        well = self.path == '/livez' and not os.path.exists('/tmp/ill')\n"
        "        self.send_response(200 if well else 503)\n"
        "        self.end_headers()\n"
        "h.HTTPServer(('', 8080), A).serve_forever()\n"
    )
    probe = json.loads(docker("image", "inspect", _image("queueing")).stdout)[0]["Config"]["Healthcheck"]["Test"][1:]
    container = DockerContainer(_image("queueing")).with_kwargs(entrypoint=["python", "-c", serve])
    with container.with_command([]):
        wrapped = container.get_wrapped_container()
        deadline = time.monotonic() + 180
        while wrapped.exec_run(probe).exit_code and time.monotonic() < deadline:
            time.sleep(0.2)
        assert wrapped.exec_run(probe).exit_code == 0
        wrapped.exec_run(["python", "-c", "open('/tmp/ill', 'w')"])
        assert wrapped.exec_run(probe).exit_code != 0


@pytest.mark.nightly("ten minutes for a second build")
@pytest.mark.parametrize("name", ["reclamation"])  # it has every part but the client's
def test_the_same_input_gives_the_same_layers(images: str, name: str) -> None:
    """Built a second time from nothing, an image has the layers that the first build made."""
    again = f"tessera-{name}:again"
    build = ("build", "-q", "--no-cache", "--network", "host", "-f", str(ROOT / "deploy/Dockerfile"))
    done = run("docker", *build, "--target", name, "-t", again, str(ROOT), timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    try:
        assert _layers(again) == _layers(_image(name))
    finally:
        docker("image", "rm", again, check=False)


def _layers(image: str) -> list[str]:
    layers: list[str] = json.loads(docker("image", "inspect", image).stdout)[0]["RootFS"]["Layers"]
    return layers
