"""A shard's servers with the identities that can be used there: a value; `connecting` opens the connections."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.client.connect.contexts import ApiLogin, LoginSource
from tessera.client.outcomes import Exit, Failure
from tessera_schemas import subjects

if TYPE_CHECKING:  # who speaks to a gateway alone does without
    from tessera.kernel.provisioning.credential_files import Credential, CredentialDirectory


@dataclass(frozen=True, slots=True)
class Where:
    """
    A shard's servers and the identities that can be used here: below `credentials`, or the one given by itself.

    `login` is a token for the shard's gateway, by which commands go as well; where there is nothing else, `nats_url`
    and `redis_url` are empty. Who has a credential for NATS sends commands there, and reads at `gateway_url`, or where
    the gateway says that it is, with a token that it gets for the credential; `operator_token` saves an operator the
    asking. `throwaway`: a power cut may lose what the shard acknowledged, as `tessera up` says without `--sync`.
    `tokens` are those got so far, by identity.
    """

    shard: str
    nats_url: str = ""
    redis_url: str = ""
    nats_monitor_url: str = ""
    credentials: Path | None = None
    single: "Credential | None" = None
    pids: Mapping[str, int | None] = field(default_factory=dict)
    login: ApiLogin | None = None
    gateway_url: str = ""
    operator_token: str = ""
    cluster_url: str = ""
    throwaway: bool = False
    tokens: dict[str, LoginSource] = field(default_factory=dict, compare=False, repr=False)

    @property
    def directory(self) -> "CredentialDirectory | None":
        """Directory of credentials for this shard; None where there is only a single credential, or none."""
        from tessera.kernel.provisioning.credential_files import CredentialDirectory

        return None if self.credentials is None else CredentialDirectory(self.credentials, self.shard)

    def identity(self, name: str) -> "Credential":
        """Credential of an identity. Raises Failure when this identity cannot be used here."""
        if self.login is not None and self.single is None:
            raise Failure(
                Exit.USAGE,
                f"identity {name}: the HTTP API at {self.login.url} does not offer this; credentials for NATS do: "
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

    @property
    def tenants(self) -> "list[Credential]":
        """Credentials of tenants in the directory, by name."""
        return [c for c in (self.directory.all() if self.directory else []) if c.identity.role == subjects.TENANT]

    def tenant(self, wanted: str | None) -> "Credential":
        """The tenant that was asked for, or the only one there is. Raises Failure."""
        if wanted:
            found = self.identity(wanted)
        elif self.single is not None:
            found = self.single
        else:
            if len(self.tenants) != 1:
                names = ", ".join(c.identity.name for c in self.tenants) or "none; `tessera apply` makes them"
                raise Failure(Exit.USAGE, f"tenant: there is not exactly one ({names}); choose one with --as")
            found = self.tenants[0]
        if found.identity.role != subjects.TENANT:
            raise Failure(Exit.USAGE, f"identity {found.identity.name}: not a tenant; submit with --as TENANT")
        return found
