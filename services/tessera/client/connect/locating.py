"""
Finding the shard, and our identity there.

Sources, in this order: `--context`, `--home`, the environment (`TESSERA_NATS_URL` and `TESSERA_CREDENTIALS_FILE`,
`TESSERA_API`, TESSERA_HOME), the login in use (`tessera login`), then `.tessera`. TESSERA_HOME and `.tessera` are the
directory of a local platform, whose `platform.json` names its servers. The shard is that of `--shard`, else
TESSERA_SHARD, else that of the credentials, or the platform's first; a gateway serves one shard.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tessera.client.connect.contexts import LOCAL, ApiLogin, Contexts, address_of, login_of, token_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

HOME_VARIABLE = "TESSERA_HOME"
SHARD_VARIABLE = "TESSERA_SHARD"
DEFAULT_HOME = Path(".tessera")
EXPLICIT = ("TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE")


def find(
    home: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    shard: str | None = None,
    context: str | None = None,
) -> Where:
    """Raises Failure when nothing says where the shard is, StartupError for wrong settings."""
    wanted = shard or environment.get(SHARD_VARIABLE) or None
    if context not in (None, LOCAL):
        return Where(wanted or subjects.MAIN_SHARD, login=Contexts.read(environment).named(context))
    if home is None:
        named = _read_environment(environment, wanted)
        if named is not None:
            return named
        if context is None and not environment.get(HOME_VARIABLE):
            contexts = Contexts.read(environment)
            if contexts.current != LOCAL:
                return Where(wanted or subjects.MAIN_SHARD, login=contexts.named(contexts.current))
    return _local_platform(home or Path(environment.get(HOME_VARIABLE) or DEFAULT_HOME), wanted)


def _read_environment(environment: Mapping[str, str], shard: str | None) -> Where | None:
    """
    The shard that variables name, by NATS, by HTTP or by both; None where they name none.

    A tenant with a token speaks to the gateway alone; an operator sends commands by NATS all the same.
    """
    if not any(environment.get(name) for name in EXPLICIT):
        login = login_of(environment)
        return None if login is None else Where(shard or subjects.MAIN_SHARD, login=login)
    from tessera.client.connect.settings import from_settings  # a script on a local platform does without

    where, url = from_settings(shard), address_of(environment)
    token = token_of(environment, url) if url else ""
    if where.can_be(subjects.OPERATOR):
        return replace(where, gateway_url=url, operator_token=token)
    return replace(where, gateway_url=url, login=ApiLogin(url, token) if token else None)


def _local_platform(directory: Path, wanted: str | None) -> Where:
    path = directory / "platform.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8-sig"))
        _check_running(state, directory)
        shard = _one_of(state["shards"], wanted, directory)
        return Where(
            shard,
            state["nats_url"],
            state["redis_url"],
            state["nats_monitor_url"],
            Path(state["credentials"]),
            pids=state["pids"],
            gateway_url=state.get("gateway_urls", {}).get(shard, ""),  # platforms of 0.3 did not say
            operator_token=_operator_token(Path(state["credentials"]), shard),
            cluster_url=state.get("cluster_url", ""),
            throwaway=not state.get("sync", False),
        )
    except OSError as error:
        raise Failure(
            Exit.UNAVAILABLE,
            f"platform: nothing runs in {directory} ({path.name}: {error.strerror}); start it with `tessera up`, "
            "name its directory with --home, log in with `tessera login URL`, or set TESSERA_NATS_URL and "
            "TESSERA_CREDENTIALS_FILE",
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failure(Exit.UNAVAILABLE, f"platform: {path} is damaged; restart `tessera up`") from error


def _operator_token(credentials: Path, shard: str) -> str:
    """The operator's token for the platform's gateway; "" where there is none."""
    from tessera.kernel.provisioning.credential_files import CredentialDirectory

    try:
        return CredentialDirectory(credentials, shard).operator_token.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _check_running(state: Mapping[str, Any], directory: Path) -> None:
    """Raises Failure for what a platform left that was killed; those of 0.3 did not say when they started."""
    from tessera.kernel.process.same_process import is_running  # whose servers are elsewhere does without

    pid = state.get("platform_pid")
    if pid is not None and not is_running(int(pid), int(state.get("platform_started", 0))):
        raise Failure(
            Exit.UNAVAILABLE,
            f"platform: the one in {directory} was killed (its process {pid} is gone); start it again: `tessera up`",
        )


def _one_of(shards: Sequence[str], wanted: str | None, directory: Path) -> str:
    if wanted is not None and wanted not in shards:
        raise Failure(Exit.USAGE, f"shard {wanted}: the platform in {directory} has {', '.join(shards)}; choose one")
    return wanted or shards[0]
