"""What `deploy/kubernetes` gives its services on a real API server: applied by kubectl, used by their own accounts."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
NAMESPACE = "tessera-system"


@dataclass(frozen=True)
class Kubectl:
    plane: ControlPlane

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints; what it complains of is raised."""
        command = [str(binaries.find("kubectl")), f"--kubeconfig={self.plane.kubeconfig()}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def kustomize(self, folder: str, namespace: str = "") -> str:
        """The documents of a folder of ours, for another tenant if one is named."""
        made = self("kustomize", str(MANIFESTS / folder))
        return made.replace("namespace: demo", f"namespace: {namespace}").replace("name: demo", f"name: {namespace}")


def deploy(plane: ControlPlane) -> Kubectl:
    """The services' accounts and rights, and their Deployments, whose pods no scheduler of the tests runs."""
    kubectl = Kubectl(plane)
    kubectl("apply", "-k", str(MANIFESTS / "base"))
    return kubectl


def let_in(plane: ControlPlane, tenant: str) -> None:
    """A tenant's namespace, as its folder makes it, ready for pods."""
    kubectl = Kubectl(plane)
    kubectl("apply", "-f", "-", stdin=kubectl.kustomize("tenant", tenant))
    plane.wait_for_namespace(tenant)


def token_of(plane: ControlPlane, service: str) -> str:
    return plane.service_account_token(NAMESPACE, f"tessera-{service}")
