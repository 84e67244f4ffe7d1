"""A kubeconfig for the simulated cluster, so that kubectl and everything built on it can look at the pods."""

import json
from pathlib import Path

from tessera.local.free_port import LOOPBACK

NAME = "tessera"


def write_kubeconfig(path: Path, port: int, user: str, token: str) -> None:
    """
    Write the file, readable by its owner only.

    The token stands in it twice, as the cluster speaks plain HTTP on the loopback: there kubectl, and all that is built
    on client-go, sends no token of the user but the password of the URL, and clients in other languages pass over that
    and send the user's token.
    """
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": f"http://{user}:{token}@{LOOPBACK}:{port}"}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user}}],
        "current-context": NAME,
    }
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(value, indent=2) + "\n")
