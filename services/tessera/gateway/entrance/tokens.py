"""
Bearer tokens: shown once, kept as hashes.

A token is `tessera_<id>_<secret>`: the id finds its entry and may stand in logs, the secret has 256 random bits, so
that a plain SHA-256 of it is as good as it gets. The file is TOML, one table per id; it is read again when it changed,
and a token that was taken out is refused from then on, in open streams too.
"""

import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import structlog
from pydantic import RootModel

from tessera.kernel import ids
from tessera.kernel.errors import StartupError
from tessera.kernel.ports import Clock
from tessera.kernel.process.files import write_private
from tessera_schemas.base import Digest, Name, Strict
from tessera_schemas.cluster.health import AgentSource
from tessera_schemas.job import LabelValue

FILE_NAME = "gateway-tokens.toml"
RELOAD_SECONDS = 2.0
ID_CHARACTERS = 12
_NOBODY = "0" * 64  # compared with when there is no such id, so that both cases do the same

log = structlog.get_logger()

Only = Literal["places", "health"]
"""
What a narrowed token is for: `places`, to say which nodes have data sets of its tenant, for programs on nodes;
`health`, to report the health of nodes, for agents of the operator.
"""


class TokenEntry(Strict):
    """
    Identity of a token; an operator's has no tenant and sees all. `user`: who submits with it; "" is as jobs say.

    `only`: all that may be done with it; None is everything. `source`: the agent that a token for health speaks as.
    """

    kind: Literal["tenant", "operator"]
    tenant: Name | None = None
    user: LabelValue = ""
    only: Only | None = None
    source: AgentSource | None = None
    sha256: Digest

    def fault(self) -> str:
        """What no entry may be, as what the file has; "" for nothing."""
        if (self.kind == "tenant") != (self.tenant is not None):
            return "a tenant's token without a tenant, or an operator's with one"
        if self.only == "places" and (self.user or self.tenant is None):
            return "an operator's or a user's token that is for one thing only"
        if self.user and self.tenant is None:
            return "an operator's token with a user; operators submit nothing"
        if (self.only == "health") != (self.source is not None) or (self.source and self.tenant is not None):
            return "a token for health that is a tenant's or has no source, or another with one"
        return ""


Entries = RootModel[dict[str, TokenEntry]]


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Caller of a request; `tenant` is None for an operator. `ends_s`: of a short token, when it ends; else 0.

    `user` is the one to whom the token is bound, "" for none; `only` is all that it may do, None for everything;
    `source` is the agent as which alone it reports health, None for no such token.
    """

    token_id: str
    tenant: str | None
    ends_s: int = 0
    user: str = ""
    only: Only | None = None
    source: str | None = None

    def may_see(self, tenant: str) -> bool:
        """Tells whether the caller may see the tenant's jobs: the tenant itself, or an operator."""
        return self.tenant is None or self.tenant == tenant


class SignedTokens(Protocol):
    """Tokens that prove themselves by a signature and an end, so that no file holds them."""

    def caller(self, token_id: str, mac: str) -> Caller | None:
        """The caller for whom this token was signed; None for a false signature, and after the token's end."""

    def holds(self, caller: Caller) -> bool:
        """Tells whether the caller's token has not ended."""


class TokenFile:
    """The tokens in force. Without a file nobody has one."""

    def __init__(self, path: Path | None, short: SignedTokens | None = None) -> None:
        self._path, self._short = path, short
        self._stamp: tuple[int, int] | None = None
        self._entries: Mapping[str, TokenEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def load(self) -> None:
        """Read the file if it changed. Raises StartupError; then what was in force stays in force."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._entries, self._stamp = {}, None
            return
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._entries, self._stamp = read_entries(self._path), stamp

    def trouble(self) -> str | None:
        """Why nobody has a token who should; who names no file wants none but those of logins by NATS."""
        if self._path is None or self._stamp is not None:
            return None
        return f"{self._path} is not there, so that every token is refused; `tessera token new` makes it"

    async def keep_fresh(self, clock: Clock) -> None:
        """Reads the file again every RELOAD_SECONDS, for ever; after a failure the known tokens stay in force."""
        while True:
            await clock.sleep(RELOAD_SECONDS)
            try:
                self.load()
            except (StartupError, OSError) as error:
                log.error("tokens_not_read", error=str(error))

    def caller(self, token: str) -> Caller | None:
        """The caller with this token; takes as long for a wrong secret as for an unknown id."""
        _, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        if self._short is not None and "." in token_id and token.startswith("tessera_"):
            return self._short.caller(token_id, secret)
        entry = self._entries.get(token_id)
        known = hmac.compare_digest(digest(secret), entry.sha256 if entry is not None else _NOBODY)
        if entry is None or not known or not token.startswith("tessera_"):
            return None
        return Caller(token_id, entry.tenant, user=entry.user, only=entry.only, source=entry.source)

    def holds(self, caller: Caller) -> bool:
        """Whether the caller's token is still in force."""
        if caller.ends_s:
            return self._short is not None and self._short.holds(caller)
        entry = self._entries.get(caller.token_id)
        same = (caller.tenant, caller.user, caller.only, caller.source)
        return entry is not None and (entry.tenant, entry.user, entry.only, entry.source) == same


def digest(secret: str) -> str:
    """SHA-256 of a secret in hexadecimal, as the token file holds it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_entries(path: Path) -> dict[str, TokenEntry]:
    """Raises StartupError for a file that is there and is none of ours."""
    try:
        entries = Entries.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig"))).root
    except (OSError, ValueError, RecursionError) as error:
        why = f"cannot be read ({error})" if isinstance(error, OSError) else "is not a file of tokens"
        raise StartupError(f"tokens: {path} {why}; make tokens with `tessera token new`") from error
    if fault := next(filter(None, (entry.fault() for entry in entries.values())), ""):
        raise StartupError(f"tokens: {path} has {fault}")
    return entries


def add_token(
    path: Path, tenant: str | None, user: str = "", only: Only | None = None, source: str | None = None
) -> str:
    """
    Put a new token into the file and return it, the only time that it is seen; no tenant makes an operator's.

    One for health without a `source` speaks as an agent that is named after it.
    """
    entries = read_entries(path) if path.exists() else {}
    token_id, secret = ids.password()[:ID_CHARACTERS], ids.password()
    kind: Literal["tenant", "operator"] = "operator" if tenant is None else "tenant"
    source = f"agent-{token_id}" if source is None and only == "health" else source
    entry = TokenEntry(kind=kind, tenant=tenant, user=user, only=only, source=source, sha256=digest(secret))
    _write(path, {**entries, token_id: entry})
    return f"tessera_{token_id}_{secret}"


def keep_operator_token(path: Path, kept: Path) -> None:
    """Have a token of an operator in the file `kept`: the one that is there if it is in force, else a new one."""
    tokens = TokenFile(path)
    tokens.load()
    with suppress(OSError, ValueError):
        caller = tokens.caller(kept.read_text(encoding="utf-8"))
        if caller is not None and caller.tenant is None and caller.only is None:
            return
    write_private(kept, add_token(path, None).encode())


def drop_token(path: Path, token_id: str) -> bool:
    """Take a token out of the file; False when it is not in there."""
    entries = read_entries(path) if path.exists() else {}
    if token_id not in entries:
        return False
    _write(path, {name: entry for name, entry in entries.items() if name != token_id})
    return True


def _write(path: Path, entries: Mapping[str, TokenEntry]) -> None:
    # Every value is plain letters and digits.
    blocks = []
    for token_id, entry in entries.items():
        lines = [f"{name} = {quoted!r}" for name, quoted in entry.model_dump(exclude_defaults=True).items()]
        blocks.append("\n".join([f"[{token_id!r}]", *lines]) + "\n")
    write_private(path, "\n".join(blocks).encode())
