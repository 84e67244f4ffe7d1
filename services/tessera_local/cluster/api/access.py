"""
Access control: bearer tokens, each with an identity and the verbs it is allowed.

Verbs are those of `faults.VERBS` for pods and for reading nodes, `nodes` for writing nodes, `admin` for ordering
faults, and `*` for all. Without tokens everybody may do everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from tessera.kernel.errors import StartupError
from tessera.kernel.ports import ApiError
from tessera.kernel.process.files import read_text
from tessera.kernel.provisioning.credentials import all_shards
from tessera_local.cluster.api import answers
from tessera_local.cluster.api.routes import Call
from tessera_schemas.shard.services import SPECS
from tessera_schemas.subjects import OPERATOR

Verb = Literal["list", "watch", "get", "log", "create", "bind", "delete", "patch", "evict", "nodes", "admin", "*"]
_READS = ("list", "watch", "get")


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    name: str
    verbs: frozenset[str]

    def check(self, call: Call) -> None:
        """Raises ApiError 403."""
        needed = call.verb if call.resource != "nodes" or call.verb in _READS else "nodes"
        if needed not in self.verbs and "*" not in self.verbs:
            what = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
            where = f' in the namespace "{call.namespace}"' if call.namespace else ""
            raise answers.forbidden(
                f'{call.resource} is forbidden: User "{self.name}" cannot {call.verb} resource "{what}"{where}'
            )

    def check_admin(self) -> None:
        """Raises ApiError 403."""
        if "admin" not in self.verbs and "*" not in self.verbs:
            raise answers.forbidden(f'User "{self.name}" cannot order faults')


EVERYBODY = TokenIdentity("system:anonymous", frozenset({"*"}))


class Access:
    """Tokens to identities; none at all means an open server."""

    def __init__(self, identities: Mapping[str, TokenIdentity] | None = None) -> None:
        self._identities = dict(identities or {})

    def identify(self, authorization: str) -> TokenIdentity:
        """The owner of an `Authorization` header's token. Raises ApiError 401."""
        if not self._identities:
            return EVERYBODY
        identity = self._identities.get(authorization.removeprefix("Bearer "))
        if identity is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return identity


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    identity: Annotated[str, Field(min_length=1)]
    verbs: frozenset[Verb]


class _Tokens(RootModel[dict[str, _Entry]]): ...


def verbs_by_role() -> dict[str, frozenset[str]]:
    """Verbs of each role: a service has those that its rights allow."""
    rights = {spec.name: spec.cluster_rights() | spec.tenant_rights() for spec in SPECS if spec.calls_cluster}
    of_subresource = {"pods/binding": "bind", "pods/eviction": "evict", "pods/log": "log"}
    verbs = {name: frozenset(of_subresource.get(r.resource, r.verb) for r in found) for name, found in rights.items()}
    return {**verbs, OPERATOR: frozenset({"*"})}


def access_of_identities(root: Path) -> Access:
    """The cluster tokens of every shard's identities below `root`. Raises StartupError as reading them does."""
    everybody, verbs = [who for found in all_shards(root).values() for who in found], verbs_by_role()
    return Access(
        {
            who.cluster_token: TokenIdentity(who.nats.user, verbs[who.identity.role])
            for who in everybody
            if who.cluster_token
        }
    )


def access_from_file(path: Path) -> Access:
    """Read YAML or JSON: token -> {identity, verbs}. Raises StartupError that names the file."""
    try:
        entries = _Tokens.model_validate(yaml.safe_load(read_text(path))).root
    except (yaml.YAMLError, RecursionError) as error:
        raise StartupError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        # Only the kind of mistake: the value may hold a token.
        raise StartupError(f"{path}: not a map of token to {{identity, verbs}}: {error.errors()[0]['msg']}") from None
    return Access({token: TokenIdentity(entry.identity, entry.verbs) for token, entry in entries.items()})
