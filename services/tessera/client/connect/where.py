"""
Location of the shard, and our identity there.

Sources, in this order: `--context`, `--home`, the environment (`TESSERA_NATS_URL` and `TESSERA_CREDENTIALS_FILE`,
`TESSERA_API`, TESSERA_HOME), the login in use (`tessera login`), then `.tessera`. TESSERA_HOME and `.tessera` are the
directory of a local platform, whose `platform.json` names its servers. The shard is that of `--shard`, else
TESSERA_SHARD, else that of the credentials, or the platform's first; a gateway serves one shard.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.client.connect.contexts import LOCAL, ApiLogin, Contexts, LoginSource, login_of
from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

if TYPE_CHECKING:  # NATS, Redis, HTTP and credentials are imported where they are used: no command needs all
    from tessera.client.connect.api import Api
    from tessera.client.connect.shard_views import ReadViews
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential, CredentialDirectory
    from tessera.kernel.redis.store import RedisStore

HOME_VARIABLE = "TESSERA_HOME"
SHARD_VARIABLE = "TESSERA_SHARD"
DEFAULT_HOME = Path(".tessera")
EXPLICIT = ("TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE")


@dataclass(frozen=True, slots=True)
class Where:
    """
    A shard's servers and the identities that can be used here: below `credentials`, or the one given by itself.

    `login` is a token for the shard's gateway, or a credential for NATS by which one is asked for; where there is
    nothing else, `nats_url` and `redis_url` are empty. `gateway` is an operator's, who reads and writes without it, and
    asks there what would have to be folded here. `throwaway`: a power cut may lose what it acknowledged, as
    `tessera up` says without `--sync`.
    """

    shard: str
    nats_url: str = ""
    redis_url: str = ""
    nats_monitor_url: str = ""
    credentials: Path | None = None
    single: "Credential | None" = None
    pids: Mapping[str, int | None] = field(default_factory=dict)
    login: ApiLogin | LoginSource | None = None
    gateway: ApiLogin | None = None
    cluster_url: str = ""
    throwaway: bool = False

    @property
    def _url(self) -> str:
        return self.login.url if isinstance(self.login, ApiLogin) else ""

    @property
    def commands_api(self) -> "Api | None":
        """The gateway for commands, where a token for it is at hand; who has a credential for NATS sends them there."""
        return self.api if isinstance(self.login, ApiLogin) else None

    @property
    def api(self) -> "Api | None":
        """The gateway, where a token for it is at hand."""
        from tessera.client.connect.api import Api

        return None if self.login is None else Api(self.login)

    @property
    def directory(self) -> "CredentialDirectory | None":
        """Directory of credentials for this shard; None where there is only a single credential, or none."""
        from tessera.kernel.provisioning.credential_files import CredentialDirectory

        return None if self.credentials is None else CredentialDirectory(self.credentials, self.shard)

    def identity(self, name: str) -> "Credential":
        """Raises Failure when this identity cannot be used here."""
        if self.login is not None and self.single is None:
            raise Failure(
                Exit.USAGE,
                f"identity {name}: the HTTP API at {self._url} does not offer this; credentials for NATS do: "
                "set TESSERA_NATS_URL and TESSERA_CREDENTIALS_FILE, or use --context local",
            )
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

    def _tenants_at_hand(self) -> "list[Credential]":
        return [c for c in (self.directory.all() if self.directory else []) if c.identity.role == subjects.TENANT]

    async def accounts(self, wanted: str | None) -> list[str]:
        """Names of the tenants as whom one may submit here. Raises Failure."""
        if self.commands_api is not None and wanted is None:
            return [whose] if (whose := (await self.commands_api.get("/v1/me"))["tenant"]) else []
        if wanted is None and self.single is None:
            return sorted(c.identity.name for c in self._tenants_at_hand())
        return [self.tenant(wanted).identity.name]

    def tenant(self, wanted: str | None) -> "Credential":
        """The tenant that was asked for, or the only one there is. Raises Failure."""
        if wanted:
            found = self.identity(wanted)
        elif self.single is not None:
            found = self.single
        else:
            tenants = self._tenants_at_hand()
            if len(tenants) != 1:
                names = ", ".join(c.identity.name for c in tenants) or "none; `tessera apply` makes them"
                raise Failure(Exit.USAGE, f"tenant: there is not exactly one ({names}); choose one with --as")
            found = tenants[0]
        if found.identity.role != subjects.TENANT:
            raise Failure(
                Exit.USAGE, f"identity {found.identity.name}: is no tenant; jobs are submitted with --as TENANT"
            )
        return found

    async def check_token_of(self, tenant: str) -> None:
        """Raises Failure unless there is a token in use, and it speaks for this tenant."""
        whose = "nobody" if self.api is None else (await self.api.get("/v1/me"))["tenant"] or "an operator"
        if whose != tenant:
            raise Failure(Exit.USAGE, f"tenant {tenant}: the token in use is of {whose}; log in with one of {tenant}")

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

    def can_read(self) -> bool:
        """Tells whether the views can be read here: by HTTP, or as the operator."""
        return self.login is not None or self.can_be(subjects.OPERATOR)

    @asynccontextmanager
    async def views(self, identity: str | None = None) -> AsyncIterator["ReadViews"]:
        """The views by HTTP where a token is at hand, else from Redis as the operator or a named identity."""
        from tessera.client.connect.shard_views import ApiViews, ShardViews

        own = self.single is not None and self.single.identity.role == subjects.TENANT and self.single.identity.name
        if self.login is not None and identity in (None, own):
            from tessera.client.connect.api import Api

            yield ApiViews(Api(self.login))
        else:
            async with self.store(self.identity(identity or subjects.OPERATOR)) as store:
                yield ShardViews(store, self.shard)

    @asynccontextmanager
    async def store(self, credential: "Credential") -> AsyncIterator["RedisStore"]:
        """The shared views; raises Failure for an identity that may not read them."""
        login = credential.redis
        if login is None:
            raise Failure(
                Exit.USAGE,
                f"identity {credential.identity.name}: cannot read Redis; use --as operator, or log in by HTTP: "
                "`tessera login URL`",
            )
        from tessera.kernel.redis.store import RedisStore

        store = RedisStore(self.redis_url, login.user, login.password, self.shard)
        try:
            yield store
        finally:
            await store.close()


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

    A tenant reads by HTTP, with its token or with one that its NATS credential gets; an operator by HTTP asks for
    explanations.
    """
    login = login_of(environment)
    if any(environment.get(name) for name in EXPLICIT):
        from tessera.client.connect.settings import from_settings  # a script on a local platform does without

        where = from_settings(shard)
        single = where.single
        if where.can_be(subjects.OPERATOR):
            return replace(where, gateway=login)
        if login is None and single is not None and single.identity.role == subjects.TENANT:
            from tessera.client.connect.nats_login import NatsLogin

            return replace(where, login=NatsLogin(where.shard, where.nats_url, single, where.bus))
        return replace(where, login=login)
    return None if login is None else Where(shard or subjects.MAIN_SHARD, login=login)


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
            gateway=_own_gateway(state, shard),
            cluster_url=state.get("cluster_url", ""),  # platforms of 0.3 did not say
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


def _own_gateway(state: Mapping[str, Any], shard: str) -> ApiLogin | None:
    """The platform's gateway with the operator's token; None for platforms of 0.3, and where it has none."""
    from tessera.kernel.provisioning.credential_files import CredentialDirectory

    url = state.get("gateway_urls", {}).get(shard)
    try:
        token = CredentialDirectory(Path(state["credentials"]), shard).operator_token.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return ApiLogin(url, token) if url else None


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
