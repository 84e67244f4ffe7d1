"""Settings that one service of the local platform has for itself."""

import json
from pathlib import Path

from tessera.kernel.provisioning.credentials import NOTIFIER

GATEWAY = "gateway"


def own_settings(service: str, directory: Path, api_port: int, tokens: Path) -> dict[str, str]:
    """Environment of a service beyond what all have; `directory` is the platform's."""
    if service == GATEWAY:
        logs = str(directory / "job-logs")
        return {"TESSERA_API_PORT": str(api_port), "TESSERA_TOKENS_FILE": str(tokens), "TESSERA_LOGS_STORE": logs}
    if service == NOTIFIER:  # receivers of this machine are what somebody tries here
        keys = directory / "webhook-secrets"
        keys.mkdir(exist_ok=True, mode=0o700)
        loopback = json.dumps(["127.0.0.0/8", "::1/128"])
        return {"TESSERA_KEYS_DIR": str(keys), "TESSERA_ALLOW_HTTP": "true", "TESSERA_ALLOWED_NETWORKS": loopback}
    return {}
