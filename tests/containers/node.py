"""
A real node for a control plane of tests: containerd with runc, pods' networks by CNI, and the kubelet.

    with bridge(), ControlPlane(folder, address=ADDRESS, api_flags=api_flags(folder)) as plane, Node(plane, other, 8):
        ...

All of it runs in name spaces of processes and mounts of its own, so that nothing is left once the first of these
processes has ended. The image of the pods is made here of Debian's static busybox, that of the step runner of its Go
sources, that of programs of MPI of this machine's packages; no registry is asked. Its GPUs are what an operator may say
of any node, extended resources in its status: no device is behind them. `Driver` beside it publishes devices that pods
claim, of which containers have variables in their environment.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from tests.kubernetes.deployed import Kubectl
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
NAME, DRIVER = identities.NODE_NAMES[0], "gpu.example.com"
BUSYBOX, CNI_PROGRAMS, CGROUPS = Path("/bin/busybox"), Path("/usr/lib/cni"), Path("/sys/fs/cgroup")
PROGRAMS = ("containerd", "ctr", "runc", "unshare", "ip", str(BUSYBOX), str(CNI_PROGRAMS / "bridge"))
KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")  # a kubelet changes them
BOTH = '"$0" --config containerd.toml & until [ -S containerd.sock ]; do sleep 0.1; done; exec "$@"'
DRIVER_ACCOUNT = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: driver, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: driver}}
rules:
- {{apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}}
- {{apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: ["*"]}}
- {{apiGroups: [""], resources: [nodes], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: driver}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: driver}}
subjects: [{{kind: ServiceAccount, name: driver, namespace: kube-system}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {DRIVER}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
"""


class NoNode(Exception):
    """None can run here; the text says why."""


@dataclass(frozen=True)
class Network:
    """A bridge of this machine and its first three numbers; nodes side by side have one each."""

    bridge: str
    numbers: str

    @property
    def address(self) -> str:
        """Of the bridge, where the node and its control plane are met."""
        return f"{self.numbers}.1"


@dataclass(frozen=True)
class Host:
    """
    Where a node runs: its name, the network of its pods, the address where its kubelet and that where DNS is met.

    `space` is a network namespace of its own that has the address and the pods' bridge; "": they are this machine's.
    """

    name: str
    pods: Network
    address: str
    dns: str
    space: str = ""

    @classmethod
    def here(cls, network: Network) -> Self:
        """The machine itself, whose node has the first name."""
        return cls(NAME, network, network.address, network.address)


PLAIN, DRIVEN = Network("tessera-node", "10.231.7"), Network("tessera-driven", "10.231.8")
ADDRESS = PLAIN.address


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
def bridge(network: Network = PLAIN) -> Iterator[None]:
    """The network of the node and its pods. Raises NoNode where none can be made."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() or missing:
        raise NoNode(f"a node needs root and {', '.join(missing or PROGRAMS)}, see `make container-engine`")
    run_command("ip", "link", "add", network.bridge, "type", "bridge", check=False)  # there if one before us was killed
    run_command("ip", "addr", "replace", f"{network.address}/24", "dev", network.bridge)
    run_command("ip", "link", "set", network.bridge, "up")
    # A container engine on this machine lets nothing pass from one pod to another that it has not made.
    through = ("FORWARD", "-i", network.bridge, "-o", network.bridge, "-j", "ACCEPT")
    has_filter = shutil.which("iptables") is not None
    if has_filter:
        run_command("iptables", "-I", *through, check=False)
    try:
        yield
    finally:
        if has_filter:
            run_command("iptables", "-D", *through, check=False)
        run_command("ip", "link", "del", network.bridge)


class Node:
    """
    Runs for as long as the `with` lasts, ready for pods; everything it writes is under `folder`.

    `gpus` are extended resources in its status. A node `for_drivers` has none but what drivers publish: its containerd
    is one that edits containers as they say (CDI, which the distribution's 1.6 does not know). `images` are archives
    beside those that every node has. Containers are copies of their image, unless the `snapshotter` is overlayfs.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        gpus: int = 0,
        *,
        host: Host | None = None,
        for_drivers: bool = False,
        images: Sequence[bytes | Path] = (),
        snapshotter: str = "native",
    ) -> None:
        self._plane, self._folder, self._gpus, self._images = plane, folder.resolve(), gpus, images
        self._snapshotter = snapshotter
        self._host, self._for_drivers = host or Host.here(PLAIN), for_drivers
        self._kubelet = binaries.find("kubelet")
        self._containerd = str(binaries.find("containerd-1.7")) if for_drivers else "containerd"
        self._kernel = {name: Path("/proc/sys", name).read_text() for name in KERNEL}

    def __enter__(self) -> Self:
        port = free_port()
        self._write()
        space = self._host.space
        words = ["nsenter", f"--net=/run/netns/{space}"] if space else []
        words += ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "sh", "-c", BOTH]
        words += [self._containerd, *self._kubelet_words(port)]
        self._server = Server(words, self._folder, port, lambda _: self._has_image(), 60.0, ends_with_us=True)
        try:
            self._server.start()
            if self._gpus:
                wait_until(self._take_gpus, "the node has its GPUs")
            self._plane.wait_for_nodes([self._host.name])
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

    @property
    def folder(self) -> Path:
        return self._folder

    def log_tail(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")[-6000:]

    def _write(self) -> None:
        """The files that containerd and the kubelet read."""
        for name in ("cni", "logs", "plugins"):
            (self._folder / name).mkdir(exist_ok=True)
        edits = EDITS.format(folder=self._folder) if self._for_drivers else ""
        (self._folder / "containerd.toml").write_text(
            CONTAINERD.format(
                folder=self._folder, image=IMAGE, plugins=CNI_PROGRAMS, edits=edits, snapshotter=self._snapshotter
            )
        )
        (self._folder / "cni" / "10-pods.conflist").write_text(json.dumps(network_of_pods(self._host)))
        made = self._plane.directory / "certificates"
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": self._socket,
            "address": self._host.address,
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
            "clusterDNS": [self._host.dns],
            "clusterDomain": DOMAIN,
            "podLogsDir": str(self._folder / "logs"),
            "volumePluginDir": str(self._folder / "plugins"),
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "5s",  # how soon it asks again for devices that were not prepared; a minute by default
        }))  # fmt: skip

    def _kubelet_words(self, port: int) -> list[str]:
        kubeconfig = self._plane.kubeconfig(identities.NODES[self._host.name])
        return [
            str(self._kubelet),
            f"--config={self._folder}/kubelet.yaml",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/kubelet",
            f"--hostname-override={self._host.name}",
            f"--node-ip={self._host.address}",
            f"--port={port}",
        ]

    @property
    def _socket(self) -> str:
        return f"unix://{self._folder}/containerd.sock"

    def _has_image(self) -> bool:
        """Give containerd the images as soon as it takes them."""
        ctr = ("ctr", "--address", f"{self._folder}/containerd.sock", "--namespace", "k8s.io", "images", "import")
        images = [image(), *([steps_image()] if STEPS_SOURCES.exists() else []), *self._images]
        for each in images:
            words, packed = ((*ctr, "-"), each) if isinstance(each, bytes) else ((*ctr, str(each)), None)
            if subprocess.run(words, input=packed, capture_output=True).returncode:
                return False
        return True

    def _take_gpus(self) -> bool:
        api, path = self._plane.api(), f"/api/v1/nodes/{self._host.name}"
        with suppress(ApiError):
            api.patch(f"{path}/status", {"status": {"capacity": {GPU_RESOURCE: str(self._gpus)}}})
            return GPU_RESOURCE in api.get(path)["status"]["allocatable"]
        return False


class Driver:
    """
    A driver's plugin beside the kubelet of a node: it publishes GPUs, and prepares them for the pods whose claims have
    them. A prepared GPU is in the environment of the claim's containers, `GPU_DEVICE_0=gpu-0`.

    `process` may be frozen, so that nothing is prepared or unprepared, and started again.
    """

    def __init__(self, plane: ControlPlane, node: Node, gpus: int) -> None:
        program, folder = binaries.find("dra-example-kubeletplugin"), node.folder / "driver"
        folder.mkdir()
        Kubectl(plane)("apply", "-f", "-", stdin=DRIVER_ACCOUNT)
        kubeconfig = plane.kubeconfig("driver", plane.service_account_token("kube-system", "driver"))
        self._cdi, self._state = node.folder / "cdi", node.folder / "kubelet" / "plugins" / DRIVER
        words = [
            str(program),
            f"--kubeconfig={kubeconfig}",
            f"--node-name={NAME}",
            f"--num-devices={gpus}",
            f"--cdi-root={self._cdi}",
            f"--kubelet-registrar-directory-path={node.folder}/kubelet/plugins_registry",
            f"--kubelet-plugins-directory-path={self._state.parent}",
        ]
        self.process = Server(words, folder, 0, lambda _: (self._state / "dra.sock").exists(), 30.0, ends_with_us=True)

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop(signal.SIGKILL)

    def prepared(self) -> dict[str, list[str]]:
        """The devices of each claim, by its UID, that the driver remembers as prepared."""
        kept = json.loads((self._state / "checkpoint.json").read_text())["v1"].get("preparedClaims", {})
        return {uid: sorted(one["device_name"] for one in devices) for uid, devices in kept.items()}

    def edits(self) -> list[str]:
        """The files by which containers of claims are edited, beside the one for all."""
        return sorted(path.name for path in self._cdi.iterdir() if "common" not in path.name)


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
            subprocess.run([f"mpicc.{kind}", defined, ALLREDUCE, "-o", program], check=True, timeout=300)
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
    config = image_config([f"sha256:{hashlib.sha256(layer).hexdigest()}"], settings)
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    return _tar({"layer.tar": layer, **{name: json.dumps(text).encode() for name, text in files.items()}})


def image_config(layers: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """As an image has it; `layers` are the digests of what is unpacked."""
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
    }


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


def run_command(*words: str, check: bool = True) -> None:
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
{edits}[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
"""
EDITS = """enable_cdi = true
cdi_spec_dirs = ["{folder}/cdi"]
"""


def network_of_pods(host: Host) -> dict[str, Any]:
    """As a plugin of CNI reads it. Pods of a host of its own reach others through it."""
    ranges = [[{"subnet": f"{host.pods.numbers}.0/24"}]]
    plugin = {
        "type": "bridge",
        "bridge": host.pods.bridge,
        "isGateway": True,
        "isDefaultGateway": bool(host.space),
        "ipam": {"type": "host-local", "ranges": ranges},
    }
    return {"cniVersion": "1.0.0", "name": host.pods.bridge, "plugins": [plugin]}
