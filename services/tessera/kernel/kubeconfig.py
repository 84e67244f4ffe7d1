"""
Where the Kubernetes API is and how to be let in, as every Kubernetes program finds it: a mounted service account
inside a pod, else the kubeconfig. Only for services that talk to a cluster, when no URL is set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tessera.kernel.errors import StartupError


@dataclass(frozen=True, slots=True)
class Access:
    """`token` gives the current bearer token: mounted ones rotate."""

    url: str
    token: Callable[[], str]
    ca_file: Path | None


def find_access() -> Access:
    """Raises StartupError when there is neither a service account nor a usable kubeconfig."""
    try:
        from kubernetes import config
        from kubernetes.client import Configuration
    except ImportError as error:
        raise StartupError(
            "cluster: TESSERA_CLUSTER_URL is not set and the kubernetes package is missing; "
            "set it, or install tessera[binder]"
        ) from error
    found = Configuration()
    try:
        config.load_config(client_configuration=found)
    except config.ConfigException as error:
        raise StartupError(
            f"cluster: TESSERA_CLUSTER_URL is not set, and no service account or kubeconfig was found ({error}); "
            "set TESSERA_CLUSTER_URL or KUBECONFIG"
        ) from error

    def token() -> str:
        bearer: str = found.get_api_key_with_prefix("BearerToken") or ""
        return bearer.removeprefix("Bearer ")

    return Access(found.host, token, Path(found.ssl_ca_cert) if found.ssl_ca_cert else None)
