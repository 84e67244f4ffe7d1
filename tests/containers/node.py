"""
A real node for a control plane of tests: containerd with runc, pods' networks by CNI, and the kubelet.

    with bridge(), ControlPlane(folder, address=ADDRESS, api_flags=api_flags(folder)) as plane, Node(plane, other, 8):
        ...

All of it runs in name spaces of processes and mounts of its own, so that nothing is left once the first of these
processes has ended. The image of the pods is made here of Debian's static busybox, that of the step runner of its Go
sources, that of programs of MPI of this machine's packages; no registry is asked. Its GPUs are what an operator may say
of any node, extended resources in its status: no device is behind them.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tessera.kernel.ports import ApiError
from tessera_local.free_port import free_port
from tests.containers.names import DOMAIN
from tests.kubernetes import binaries, identities
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.nodes import GPU_RESOURCE
from tests.servers import Server

IMAGE, STEPS_IMAGE, MPI_IMAGE = "tessera.test/busybox:1", "tessera.test/steps:1", "tessera.test/mpi:1"
STEPS_SOURCES = Path(__file__).parents[2] / "services" / "tessera_steps"
ALLREDUCE = Path(__file__).parents[1] / "steps" / "allreduce.c"
MPI = {
    "openmpi": (
        "/usr/bin/mpirun.openmpi",
        "/usr/bin/orted",
        "/usr/lib/*/openmpi/lib",
        "/usr/lib/*/pmix2",
        "/usr/share/openmpi",
        "/etc/openmpi",
    ),
    "mpich": ("/usr/bin/mpirun.mpich", "/usr/bin/hydra_pmi_proxy", "/usr/lib/*/ucx"),
}
"""What of Debian's packages a program of each kind needs in its pod, beside libraries."""
HAS_MPI = shutil.which("mpicc.openmpi") is not None and all(Path(parts[0]).exists() for parts in MPI.values())
NAME, BRIDGE, ADDRESS, SUBNET = identities.NODE_NAME, "tessera-node", "10.231.7.1", "10.231.7.0/24"
BUSYBOX, CNI_PROGRAMS, CGROUPS = Path("/bin/busybox"), Path("/usr/lib/cni"), Path("/sys/fs/cgroup")
PROGRAMS = ("containerd", "ctr", "runc", "unshare", "ip", str(BUSYBOX), str(CNI_PROGRAMS / "bridge"))
KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")  # a kubelet changes them
BOTH = 'containerd --config containerd.toml & until [ -S containerd.sock ]; do sleep 0.1; done; exec "$0" "$@"'


class NoNode(Exception):
    """None can run here; the text says why."""


def api_flags(directory: Path) -> list[str]:
    """With which an API server of a control plane under `directory` and the kubelet trust each other."""
    made = directory.resolve() / "certificates"
    return [
        "kubelet-preferred-address-types=InternalIP",
        f"kubelet-client-certificate={made}/serving.crt",
        f"kubelet-client-key={made}/serving.key",
        f"kubelet-certificate-authority={made}/ca.crt",
    ]


@contextmanager
def bridge() -> Iterator[None]:
    """The network of the node and its pods. Raises NoNode where none can be made."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() or missing:
        raise NoNode(f"a node needs root and {', '.join(missing or PROGRAMS)}, see `make container-engine`")
    _run("ip", "link", "add", BRIDGE, "type", "bridge", check=False)  # there if one before us was killed
    _run("ip", "addr", "replace", f"{ADDRESS}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    # A container engine on this machine lets nothing pass from one pod to another that it has not made.
    through = ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
    has_filter = shutil.which("iptables") is not None
    if has_filter:
        _run("iptables", "-I", *through, check=False)
    try:
        yield
    finally:
        if has_filter:
            _run("iptables", "-D", *through, check=False)
        _run("ip", "link", "del", BRIDGE)


class Node:
    """Runs for as long as the `with` lasts, ready for pods; everything it writes is under `folder`."""

    def __init__(self, plane: ControlPlane, folder: Path, gpus: int) -> None:
        self._plane, self._folder, self._gpus = plane, folder.resolve(), gpus
        self._kubelet = binaries.find("kubelet")
        self._kernel = {name: Path("/proc/sys", name).read_text() for name in KERNEL}

    def __enter__(self) -> Self:
        port = free_port()
        self._write()
        words = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "sh", "-c", BOTH]
        words += self._kubelet_words(port)
        self._server = Server(words, self._folder, port, lambda _: self._has_image(), 60.0, ends_with_us=True)
        try:
            self._server.start()
            wait_until(self._take_gpus, "the node has its GPUs")
            self._plane.wait_for_nodes([NAME])
        except Exception as error:
            self.close()
            raise NoNode(f"a node did not start ({error}): {self.log_tail()[-1000:]}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._server.stop(signal.SIGKILL)
        for name, text in self._kernel.items():
            Path("/proc/sys", name).write_text(text)
        wait_until(self._has_let_go, "nothing is left of the pods")

    def _has_let_go(self) -> bool:
        """Take away the groups of processes that containers were; one that is not empty stays."""
        containers = {path.name for path in (self._folder / "state").glob("*.task/k8s.io/*")}
        left = [group for group in CGROUPS.glob("**/k8s.io/*") if group.name in containers]
        for group in left:
            with suppress(OSError):
                group.rmdir()
        return not left

    def log_tail(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")[-6000:]

    def _write(self) -> None:
        """The files that containerd and the kubelet read."""
        for name in ("cni", "logs", "plugins"):
            (self._folder / name).mkdir(exist_ok=True)
        (self._folder / "containerd.toml").write_text(
            CONTAINERD.format(folder=self._folder, image=IMAGE, plugins=CNI_PROGRAMS)
        )
        (self._folder / "cni" / "10-pods.conflist").write_text(json.dumps(NETWORK))
        made = self._plane.directory / "certificates"
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": self._socket,
            "address": ADDRESS,
            "tlsCertFile": str(made / "serving.crt"),
            "tlsPrivateKeyFile": str(made / "serving.key"),
            "authentication": {
                "x509": {"clientCAFile": str(made / "ca.crt")},
                "webhook": {"enabled": False},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "healthzPort": 0,
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "clusterDNS": [ADDRESS],
            "clusterDomain": DOMAIN,
            "podLogsDir": str(self._folder / "logs"),
            "volumePluginDir": str(self._folder / "plugins"),
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
        }))  # fmt: skip

    def _kubelet_words(self, port: int) -> list[str]:
        kubeconfig = self._plane.kubeconfig(identities.NODE)
        return [
            str(self._kubelet),
            f"--config={self._folder}/kubelet.yaml",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/kubelet",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--port={port}",
        ]

    @property
    def _socket(self) -> str:
        return f"unix://{self._folder}/containerd.sock"

    def _has_image(self) -> bool:
        """Give containerd the images as soon as it takes them."""
        ctr = ("ctr", "--address", f"{self._folder}/containerd.sock", "--namespace", "k8s.io", "images", "import", "-")
        images = [image(), *([steps_image()] if STEPS_SOURCES.exists() else []), *([mpi_image()] if HAS_MPI else [])]
        return not any(subprocess.run(ctr, input=packed, capture_output=True).returncode for packed in images)

    def _take_gpus(self) -> bool:
        api, path = self._plane.api(), f"/api/v1/nodes/{NAME}"
        with suppress(ApiError):
            api.patch(f"{path}/status", {"status": {"capacity": {GPU_RESOURCE: str(self._gpus)}}})
            return GPU_RESOURCE in api.get(path)["status"]["allocatable"]
        return False


def image() -> bytes:
    """Busybox with a name for each of its programs; by itself it sleeps, which is all that a pod's pause must do."""
    return _image(IMAGE, _tar(_busybox()), {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]})


def _busybox() -> dict[str, bytes | str]:
    names = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {**{f"bin/{name}": "busybox" for name in names}, "bin/busybox": BUSYBOX.read_bytes(), "tmp/.keep": b""}


@cache
def mpi_image() -> bytes:
    """Busybox with what `mpirun` of both kinds needs, and `allreduce.KIND`; MPICH's leaves without MPI_Finalize."""
    files = _busybox()
    with tempfile.TemporaryDirectory() as folder:
        built = [Path(folder) / f"allreduce.{kind}" for kind in MPI]
        for kind, program, defined in zip(MPI, built, ("-ULEAVES", "-DLEAVES"), strict=True):
            subprocess.run([f"mpicc.{kind}", defined, ALLREDUCE, "-o", program], check=True, timeout=60)
            files[f"bin/{program.name}"] = program.read_bytes()
        roots = [found for parts in MPI.values() for part in parts for found in Path("/").glob(part[1:])]
        whole = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*")) if path.is_file()]
        programs = [str(path) for path in whole if path.read_bytes()[:4] == b"\x7fELF"]
        linked = subprocess.run(["ldd", *programs, *built], capture_output=True, text=True)
    libraries = {
        Path(word) for line in linked.stdout.splitlines() for word in line.split() if line[0] == "\t" and word[0] == "/"
    }
    files |= {str(path)[1:]: path.read_bytes() for path in (*whole, *libraries)}
    return _image(MPI_IMAGE, _tar(files), {"Env": ["PATH=/usr/bin:/bin"]})


@cache
def steps_image() -> bytes:
    """The step runner alone, built as the Dockerfile builds it. Raises NoNode where there is no Go."""
    go = shutil.which("go")
    if go is None:
        raise NoNode("no go on the path, to build the step runner with")
    with tempfile.TemporaryDirectory() as folder:
        built, how = Path(folder) / "tessera-steps", ["-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run(
            [go, "build", *how, "-o", str(built), "."], cwd=STEPS_SOURCES, env=environment, check=True, timeout=300
        )
        layer = _tar({"tessera-steps": built.read_bytes()})
    return _image(STEPS_IMAGE, layer, {"User": "65532:65532", "Entrypoint": ["/tessera-steps"]})


def _image(name: str, layer: bytes, settings: dict[str, Any]) -> bytes:
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    return _tar({"layer.tar": layer, **{name: json.dumps(text).encode() for name, text in files.items()}})


def _tar(files: dict[str, bytes | str]) -> bytes:
    """Programs of these contents; a text is the file to which that name leads."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if isinstance(content, str):
                info.type, info.linkname, content = tarfile.SYMTYPE, content, b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True)


CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
"""
NETWORK: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": BRIDGE,
    "plugins": [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": SUBNET}]]},
        }
    ],
}
