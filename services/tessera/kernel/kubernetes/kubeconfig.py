"""
Address and credentials of the Kubernetes API, as every Kubernetes program finds them: a mounted service account inside
a pod, else the kubeconfig. Only for services that talk to a cluster, when no URL is set.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster, tls_context
from tessera.kernel.ports import Clock

MOUNTED_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SAME_TOKEN_SECONDS = 10.0
"""Every call carries the token, and asking the kubeconfig for it costs more than a small call itself."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """
    `token` gives the current bearer token: mounted ones rotate. `client` are certificate and key where these let in,
    as with what kind and kubeadm write; a certificate that is renewed is read at the next start.
    """

    url: str
    token: Callable[[], str]
    ca_file: Path | None
    client: tuple[Path, Path] | None = None

    def cluster(self) -> HttpCluster:
        """Adapter for this cluster, which connects at its first call. Whoever asks for it closes it."""
        return HttpCluster(self.url, self.token, self.ca_file, client=self.client)


def cluster_at(url: str, token: str) -> HttpCluster:
    """Adapter for the API at `url`, else where the usual sources say. Raises StartupError where they name none."""
    return HttpCluster(url, token) if url else find_access().cluster()


def find_access() -> ClusterAccess:
    """Raises StartupError when there is neither a service account nor a usable kubeconfig."""
    try:
        from kubernetes import config
        from kubernetes.client import Configuration
        from yaml import YAMLError
    except ImportError as error:
        raise StartupError(
            "cluster: TESSERA_CLUSTER_URL is not set and the kubernetes package is missing; "
            "set it, or install tessera-scheduler[binder]"
        ) from error
    found = Configuration()
    try:
        config.load_config(client_configuration=found)
    except config.ConfigException as error:
        raise StartupError(
            f"cluster: TESSERA_CLUSTER_URL is not set, and no service account or kubeconfig was found ({error}); "
            "set TESSERA_CLUSTER_URL or KUBECONFIG"
        ) from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, YAMLError) as error:
        # What the package raises for a kubeconfig that is a directory, another text, or has values of another kind.
        why = " ".join(str(error).split()) or type(error).__name__
        about = f"cluster: {_kubeconfig()} is no kubeconfig ({why})"
        raise StartupError(f"{about}; correct it, or set KUBECONFIG") from error

    def token() -> str:
        bearer: str = found.get_api_key_with_prefix("BearerToken") or ""
        return bearer.removeprefix("Bearer ")

    ca_file = Path(found.ssl_ca_cert) if found.ssl_ca_cert else None
    client = (Path(found.cert_file), Path(found.key_file)) if found.cert_file and found.key_file else None
    _check_certificates(ca_file, client)
    return ClusterAccess(found.host, kept(token, SystemClock()), ca_file, client)


def _kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _check_certificates(ca_file: Path | None, client: tuple[Path, Path] | None) -> None:
    """Raises StartupError: what is found at the first call would look like a mistake of ours."""
    try:
        tls_context(ca_file, client)
    except OSError as error:  # ssl's own errors among them
        raise StartupError(
            f"cluster: a certificate or key in {_kubeconfig()} cannot be used ({error}); correct it, or set KUBECONFIG"
        ) from error


def mounted_account(
    folder: Path = MOUNTED_ACCOUNT, environment: Mapping[str, str] = os.environ
) -> ClusterAccess | None:
    """Access by the service account of the pod that this process runs in, None elsewhere; it takes no package."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    token, ca_file = folder / "token", folder / "ca.crt"
    if not (host and token.is_file() and ca_file.is_file()):
        return None
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterAccess(url, kept(lambda: token.read_text().strip(), SystemClock()), ca_file)


def kept(ask: Callable[[], str], clock: Clock) -> Callable[[], str]:
    """The same answer for a while: tokens are renewed minutes before they end."""
    answer, asked = "", float("-inf")

    def token() -> str:
        nonlocal answer, asked
        if clock.monotonic() - asked >= SAME_TOKEN_SECONDS:
            answer, asked = ask(), clock.monotonic()
        return answer

    return token
