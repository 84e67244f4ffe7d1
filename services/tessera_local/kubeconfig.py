"""
A certificate and a kubeconfig for the simulated cluster, so that kubectl and all that is built on it can look at the
pods: clients of Kubernetes send a token over TLS, and many only there.
"""

import json
from base64 import b64encode
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera.kernel.process.files import write_private
from tessera_local.free_port import LOOPBACK

NAME = "tessera"


def write_kubeconfig(path: Path, port: int, authority: bytes, user: str, token: str) -> None:
    """
    Write the file, readable by its owner only: the port that speaks TLS, whom its certificate is of, and the token.

    Clients send a token where the server is known: kubectl, and all that is built on client-go, sends none over HTTP.
    """
    trusted = {"server": f"https://{LOOPBACK}:{port}", "certificate-authority-data": b64encode(authority).decode()}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": trusted}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user}}],
        "current-context": NAME,
    }
    write_private(path, json.dumps(value, indent=2).encode() + b"\n")


def write_certificate(path: Path) -> bytes:
    """
    Write a new certificate of the loopback with its key, readable by its owner only; returns its authority's, as PEM.

    The authority signs nothing else: its own key is written nowhere. Raises StartupError without the extra `local`.
    """
    try:
        import trustme
    except ImportError as error:
        raise StartupError("trustme: not found; pip install 'tessera-scheduler[local]'") from error
    authority = trustme.CA(organization_name="Tessera", organization_unit_name="simulated cluster")
    issued = authority.issue_cert(LOOPBACK, "localhost")
    write_private(path, issued.private_key_and_cert_chain_pem.bytes())
    return authority.cert_pem.bytes()
