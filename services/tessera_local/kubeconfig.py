"""A kubeconfig for the simulated cluster, so that kubectl and everything built on it can look at the pods."""

import json
from base64 import b64encode
from pathlib import Path

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
