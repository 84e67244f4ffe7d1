"""A shard's servers with the identities that can be used there, and the connections that they open."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.client.connect.contexts import ApiLogin, LoginSource
from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

if TYPE_CHECKING:  # NATS, Redis, HTTP and credentials are imported where they are used: no command needs all
    from tessera.client.connect.api import Api
    from tessera.client.connect.shard_views import ReadViews
    from tessera.kernel.kubernetes.cluster import HttpCluster
    from tessera.kernel.nats.bus import NatsBus
    from tessera.kernel.provisioning.credential_files import Credential, CredentialDirectory
    from tessera.kernel.redis.store import RedisStore


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
            raise Failure(Exit.USAGE, f"identity {found.identity.name}: not a tenant; submit with --as TENANT")
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

    def cluster(self) -> "HttpCluster":
        """
        The cluster that the local platform or the settings name, else the kubeconfig's. Raises StartupError for none.
        """
        from tessera.kernel.kubernetes.kubeconfig import cluster_at  # few commands call Kubernetes

        if not self.cluster_url:
            return cluster_at("", "")
        return cluster_at(self.cluster_url, (self.single or self.identity(subjects.OPERATOR)).cluster_token)

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
