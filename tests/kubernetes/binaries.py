"""
The programs of a real control plane: etcd, Kubernetes itself with its kubelet, a driver of devices, KWOK, which plays
others, Helm, KEDA, JobSet, LeaderWorkerSet, KubeRay, the MPI operator, Kubeflow's Trainer, and an object store that
speaks S3.

Looked for where envtest keeps them (`KUBEBUILDER_ASSETS`), on PATH, then in a cache folder; what is in none of these is
built into that folder from Go modules by name, at the versions pinned under `go/`. The folder is `TESSERA_TOOLS`, else
one under the user's cache that is named by the module's pins, so that other pins never meet old programs.
`python -m tests.kubernetes.binaries` builds what is missing and says where everything is; what takes long to build is
built only where it is named there (`python -m tests.kubernetes.binaries keda-operator keda-adapter`).
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MODULES = Path(__file__).parent / "go"
KUBERNETES_VERSION = "v1.36.2"
NEWEST_VERSION = "v1.37.2"
BUILD_SECONDS = 1800.0  # each; from nothing on two busy cores Kubernetes took eight minutes
PACKAGES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("controlplane", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-apiserver-1.37": ("newest", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("controlplane", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("controlplane", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": ("controlplane", "k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    "containerd-1.7": ("containerd", "github.com/containerd/containerd/cmd/containerd"),
    "dra-example-kubeletplugin": ("dradriver", "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "helm": ("helm", "helm.sh/helm/v3/cmd/helm"),
    "versitygw": ("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "keda-operator": ("keda", "github.com/kedacore/keda/v2/cmd/operator"),
    "keda-adapter": ("keda", "github.com/kedacore/keda/v2/cmd/adapter"),
    "jobset": ("jobset", "sigs.k8s.io/jobset"),
    "lws": ("lws", "sigs.k8s.io/lws/cmd"),
    "kuberay": ("kuberay", "github.com/ray-project/kuberay/ray-operator"),
    "mpi-operator": ("mpi", "github.com/kubeflow/mpi-operator/cmd/mpi-operator"),
    "trainer": ("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),
    "compose-2": ("compose", "github.com/docker/compose/v2/cmd"),
}
BUILT_BY_NAME = (
    "keda-operator",
    "keda-adapter",
    "lws",
    "kuberay",
    "mpi-operator",
    "trainer",
    "kube-apiserver-1.37",
)
"""More than CI has minutes for: LeaderWorkerSet took eight and KubeRay seven on two busy cores."""
BUILD_ALL = "TESSERA_BUILD_ALL"
"""The variable that has these built, too; as each night."""
OF_CONTAINERS = ("compose-2", "containerd-1.7", "dra-example-kubeletplugin", "kubelet")
"""Only tests in containers ask for them, and compose takes minutes."""
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kwok")
_MINOR = KUBERNETES_VERSION.split(".")[1]
_VERSION, _CAPABILITIES = "k8s.io/component-base/version", "helm.sh/helm/v3/pkg/chartutil"


def _kubernetes_flags(version: str) -> str:
    """
    Of a version of Kubernetes: built by a plain `go build` it does not know its own, and its parts refuse each other.
    """
    minor = version.split(".")[1]
    return f"-s -w -X {_VERSION}.gitVersion={version} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={minor}"


_LINKER_FLAGS = {
    "controlplane": _kubernetes_flags(KUBERNETES_VERSION),
    "kubelet": _kubernetes_flags(KUBERNETES_VERSION),
    "newest": _kubernetes_flags(NEWEST_VERSION),
    "compose": "-s -w -X github.com/docker/compose/v2/internal.Version=v2.40.3",  # else it calls itself `dev`
    # Helm takes a cluster that it does not see for one of 1.20.
    "helm": f"-s -w -X {_CAPABILITIES}.k8sVersionMajor=1 -X {_CAPABILITIES}.k8sVersionMinor={_MINOR}",
}

Say = Callable[[str], None]


class Unavailable(Exception):
    """A program is neither there nor to be built; the text says which and why."""


def find(program: str, say: Say = print) -> Path:
    """Raises Unavailable."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    candidates = [Path(assets) / program] if assets else []
    if on_path := shutil.which(program):
        candidates.append(Path(on_path))
    candidates.append(cache_folder(program) / program)
    found = next((path for path in candidates if os.access(path, os.X_OK)), None)
    if found is None and program in BUILT_BY_NAME and os.environ.get(BUILD_ALL) != "1":
        raise Unavailable(f"{program}: not here, and built only by name: python -m tests.kubernetes.binaries {program}")
    return found or build(program, say)


def sources(program: str) -> Path:
    """The folder of the module that a program is built from, at the pinned version. Raises Unavailable."""
    module, _ = PACKAGES[program]
    (required,) = re.findall(r"^require (\S+) ", (MODULES / module / "go.mod").read_text(), re.MULTILINE)
    return Path(json.loads(_go(required, module, "mod", "download", "-json", required))["Dir"])


def cache_folder(program: str) -> Path:
    if tools := os.environ.get("TESSERA_TOOLS"):
        return Path(tools)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    module, _ = PACKAGES[program]
    pins = hashlib.sha256()
    for path in sorted((MODULES / module).glob("go.*")):
        pins.update(path.read_bytes())
    return cache / "tessera" / f"{module}-{pins.hexdigest()[:12]}"


def build(program: str, say: Say = print) -> Path:
    """Build a program into the cache, unless it is there. Raises Unavailable."""
    folder = cache_folder(program)
    folder.mkdir(parents=True, exist_ok=True)
    module, package = PACKAGES[program]
    target = folder / program
    with _alone(folder):
        if target.exists():  # another process built it while this one waited
            return target
        say(f"building {program} into {folder}: minutes the first time")
        began = time.monotonic()
        partial = target.with_suffix(".partial")
        flags = _LINKER_FLAGS.get(module, "-s -w")
        _go(program, module, "build", "-buildvcs=false", "-ldflags", flags, "-o", partial, package)
        partial.rename(target)
        say(f"built {program} in {time.monotonic() - began:.0f} s")
    return target


def _go(what: str, module: str, *arguments: str | Path) -> bytes:
    """Run go in the folder of a module of ours; its output. Raises Unavailable."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"{what}: not in KUBEBUILDER_ASSETS, on PATH or in the cache, and there is no go")
    # The machine's own Go settings say where modules come from; only what decides about the result is set here.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = [go, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, cwd=MODULES / module, env=environment, capture_output=True, timeout=BUILD_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what}: not built within {BUILD_SECONDS:.0f} s") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[-600:]
        raise Unavailable(f"{what}: the module {arguments[-1]} could not be built: {said}")
    return done.stdout


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One build at a time: a second one of the same program would only be slower."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(named: Sequence[str]) -> int:
    for program in named or [name for name in PACKAGES if name not in (*BUILT_BY_NAME, *OF_CONTAINERS)]:
        try:
            print(f"{program}: {build(program) if program in named else find(program)}", flush=True)
        except Unavailable as error:
            print(error, file=sys.stderr)
            return 1 if os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
