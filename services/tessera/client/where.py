"""
Location of the shard, and our identity there.

Sources, in this order: `--home`, the environment (`TESSERA_NATS_URL`, `TESSERA_CREDENTIALS_FILE`), then the directory
of a local platform: TESSERA_HOME or `.tessera`, whose `platform.json` names its servers. The shard is that of
`--shard`, else TESSERA_SHARD, else that of the credentials, or the platform's first.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

if TYPE_CHECKING:  # NATS, Redis and credentials are imported where they are used: no command needs all
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential, CredentialDirectory
    from tessera.kernel.redis.store import RedisStore

HOME_VARIABLE = "TESSERA_HOME"
SHARD_VARIABLE = "TESSERA_SHARD"
DEFAULT_HOME = Path(".tessera")
EXPLICIT = ("TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE")


@dataclass(frozen=True, slots=True)
class Where:
    """A shard's servers and the identities that can be used here: below `credentials`, or the one given by itself."""

    shard: str
    nats_url: str
    redis_url: str
    nats_monitor_url: str = ""
    credentials: Path | None = None
    single: "Credential | None" = None
    pids: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def directory(self) -> "CredentialDirectory | None":
        """Directory of credentials for this shard; None where there is only a single credential, or none."""
        from tessera.kernel.provisioning.credential_files import CredentialDirectory

        return None if self.credentials is None else CredentialDirectory(self.credentials, self.shard)

    def identity(self, name: str) -> "Credential":
        """Raises Failure when this identity cannot be used here."""
        if self.single is not None and name == self.single.identity.name:
            return self.single
        if self.single is not None and self.directory is None:
            raise Failure(
                Exit.USAGE,
                f"identity {name}: the credentials in use are those of {self.single.identity.name}; "
                "set TESSERA_CREDENTIALS_FILE to the right file",
            )
        if self.directory is None or not self.directory.file(name).exists():
            raise Failure(
                Exit.USAGE,
                f"identity {name}: no credentials of shard {self.shard} in {self.credentials}; "
                "add it with `tessera apply`",
            )
        return self.directory.read(name)

    def can_be(self, name: str) -> bool:
        """Tells whether the credential of this identity is at hand."""
        if self.single is not None and (self.directory is None or self.single.identity.name == name):
            return self.single.identity.name == name
        return self.directory is not None and self.directory.file(name).exists()

    def tenant(self, wanted: str | None) -> "Credential":
        """The tenant that was asked for, or the only one there is. Raises Failure."""
        if wanted:
            found = self.identity(wanted)
        elif self.single is not None:
            found = self.single
        else:
            tenants = [
                c for c in (self.directory.all() if self.directory else []) if c.identity.role == subjects.TENANT
            ]
            if len(tenants) != 1:
                names = ", ".join(c.identity.name for c in tenants) or "none; `tessera apply` makes them"
                raise Failure(Exit.USAGE, f"tenant: there is not exactly one ({names}); choose one with --as")
            found = tenants[0]
        if found.identity.role != subjects.TENANT:
            raise Failure(
                Exit.USAGE, f"identity {found.identity.name}: is no tenant; jobs are submitted with --as TENANT"
            )
        return found

    @asynccontextmanager
    async def bus(self, credential: "Credential") -> AsyncIterator["NatsBus"]:
        """Connected as `credential` says; raises StartupError when NATS is away or refuses us."""
        from tessera.kernel.nats.bus import NatsBus

        login = credential.nats
        inbox = subjects.inbox(credential.identity.name)
        bus = await NatsBus.connect(self.nats_url, user=login.user, password=login.password, inbox_prefix=inbox)
        try:
            yield bus
        finally:
            await bus.close()

    @asynccontextmanager
    async def store(self, credential: "Credential") -> AsyncIterator["RedisStore"]:
        """The shared views; raises Failure for an identity that may not read them."""
        login = credential.redis
        if login is None:
            raise Failure(Exit.USAGE, f"identity {credential.identity.name}: may not read the views; use --as operator")
        from tessera.kernel.redis.store import RedisStore

        store = RedisStore(self.redis_url, login.user, login.password, self.shard)
        try:
            yield store
        finally:
            await store.close()


def find(home: Path | None = None, environment: Mapping[str, str] = os.environ, shard: str | None = None) -> Where:
    """Raises Failure when nothing says where the shard is, StartupError for wrong settings."""
    wanted = shard or environment.get(SHARD_VARIABLE) or None
    if home is None and any(environment.get(name) for name in EXPLICIT):
        from tessera.client.settings import from_settings  # a script on a local platform does without

        return from_settings(wanted)
    directory = home or Path(environment.get(HOME_VARIABLE) or DEFAULT_HOME)
    path = directory / "platform.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8-sig"))
        _check_running(state, directory)
        return Where(
            _one_of(state["shards"], wanted, directory),
            state["nats_url"],
            state["redis_url"],
            state["nats_monitor_url"],
            Path(state["credentials"]),
            pids=state["pids"],
        )
    except OSError as error:
        raise Failure(
            Exit.UNAVAILABLE,
            f"platform: nothing runs in {directory} ({path.name}: {error.strerror}); start it with `tessera up`, name "
            "its directory with --home, or set TESSERA_NATS_URL and TESSERA_CREDENTIALS_FILE",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(Exit.UNAVAILABLE, f"platform: {path} is damaged; restart `tessera up`") from error


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
