"""
The credentials of identities: a JSON file each, in one directory.

The main shard's identities lie in the directory itself, those of another shard in a folder of its name.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera_schemas import subjects

NATS_FILE = "nats-auth.conf"
REDIS_FILE = "redis-users.acl"


@dataclass(frozen=True, slots=True)
class Identity:
    """
    An identity that connects. `role` is a service's name, `operator`, or `tenant`; only a tenant has durable
    subscribers.
    """

    name: str
    role: str
    subscribers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """A user of NATS or Redis."""

    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Credential:
    """One identity's file; `redis` and `cluster_token` are empty where the role has no business."""

    identity: Identity
    nats: Login
    redis: Login | None
    cluster_token: str = ""


class CredentialDirectory:
    """Credential files of one shard below `root`, and the two server files made from all shards'."""

    def __init__(self, root: Path, shard: str) -> None:
        self.root, self.shard = root, shard
        self.path = root if shard == subjects.MAIN_SHARD else root / shard

    @property
    def nats_file(self) -> Path:
        """Authorisation of nats-server, rendered from the identities of all shards."""
        return self.root / NATS_FILE

    @property
    def redis_file(self) -> Path:
        """ACL of Redis, rendered from the identities of all shards."""
        return self.root / REDIS_FILE

    @property
    def operator_token(self) -> Path:
        """The operator's token for the gateway, on a local platform."""
        return self.path / "operator.token"

    def file(self, name: str) -> Path:
        """Place of one identity's credential in this shard, whether the file is there or not."""
        return self.path / f"{name}.json"

    def read(self, name: str) -> Credential:
        """Raises StartupError when the file is missing or is not a credential."""
        return read_credential(self.file(name))

    def all(self) -> list[Credential]:
        """Every credential of this shard, by name. Raises StartupError for a file that is no credential."""
        return [read_credential(path) for path in sorted(self.path.glob("*.json"))]


def read_credential(path: Path) -> Credential:
    """One identity's file. Raises StartupError when it is missing or is not a credential."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        who = raw["identity"]
        return Credential(
            Identity(who["name"], who["role"], tuple(who["subscribers"])),
            Login(**raw["nats"]),
            Login(**raw["redis"]) if raw["redis"] else None,
            raw["cluster_token"],
        )
    except OSError as error:
        raise StartupError(f"credentials: cannot read {path} ({error.strerror}); run `tessera init`") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartupError(f"credentials: {path} is not a credential file; delete it, run `tessera init`") from error
