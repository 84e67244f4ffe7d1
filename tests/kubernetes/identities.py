"""
Who may talk to the API server, by name, each with a token that it knows from a file.

`admin` may do everything, and kube-scheduler what every cluster lets it. `NAMED` may do nothing until somebody grants
it, so that the rights of a service can be tested. The token of a service account is asked of the server instead:
`ControlPlane.service_account_token`.
"""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

import yaml

ADMIN, CONTROLLERS, KUBELETS, SCHEDULER = "admin", "controllers", "kubelets", "system:kube-scheduler"
NODE_NAMES = ("real-1", "real-2")
NODES = {name: f"system:node:{name}" for name in NODE_NAMES}
NAMED = ("binder", "reclamation", "node-reader", "log-reader", "stranger")
_MASTERS = "system:masters"
_GROUPS = {
    ADMIN: _MASTERS,
    CONTROLLERS: _MASTERS,
    KUBELETS: _MASTERS,
    SCHEDULER: "",
    **dict.fromkeys(NODES.values(), "system:nodes"),
}


def new_tokens() -> dict[str, str]:
    return {user: secrets.token_hex(16) for user in (*_GROUPS, *NAMED)}


def write_token_file(path: Path, tokens: Mapping[str, str]) -> None:
    path.touch(mode=0o600)
    path.write_text("".join(f'{token},{user},{user},"{_GROUPS.get(user, "")}"\n' for user, token in tokens.items()))


def write_kubeconfig(path: Path, url: str, ca: Path, user: str, login: dict[str, str]) -> None:
    """Whole in one file, so that a container may be given it; `login` are the fields by which the user is known."""
    path.touch(mode=0o600)
    authority = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": user, "user": login}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    }
    path.write_text(yaml.safe_dump(config))
