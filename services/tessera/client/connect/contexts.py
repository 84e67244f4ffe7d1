"""
Logins to HTTP APIs, kept under names in the user's configuration directory, and which one is in use.

The file holds tokens and is readable by its owner only.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tessera.client.outcomes import Exit, Failure

LOCAL = "local"
"""The context that means no login: the platform or the credentials at hand."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that are this machine, to which a token may travel unencrypted."""
API_VARIABLE = "TESSERA_API"
PLAINTEXT_VARIABLE = "TESSERA_PLAINTEXT_OK"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "TESSERA_TOKEN", "TESSERA_TOKEN_FILE"  # names, no tokens


@dataclass(frozen=True, slots=True)
class ApiLogin:
    """Address of a gateway, and a token for it."""

    url: str
    token: str


class LoginSource(Protocol):
    """Identity that has no token yet, and gets one when a gateway is asked something."""

    async def obtain(self) -> ApiLogin:
        """Address of a gateway, and a token that is in force. Raises Failure where no gateway gives one."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Saved logins by name; `current` is a name among them, or LOCAL."""

    logins: Mapping[str, ApiLogin]
    current: str = LOCAL

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "Contexts":
        """Contexts of this user; none before the first login. Raises Failure for a damaged file."""
        path = file_of(environment)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            logins = {name: ApiLogin(str(one["url"]), str(one["token"])) for name, one in value["contexts"].items()}
            return cls(logins, str(value["current"]))
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Failure(
                Exit.USAGE, f"{path}: cannot be read ({error}); correct it, or delete it and log in again"
            ) from error

    def write(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Replace the file in one step; returns its path."""
        from tessera.kernel.process.files import write_private  # who only reads contexts does without

        path = file_of(environment)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        contexts = {name: {"url": login.url, "token": login.token} for name, login in sorted(self.logins.items())}
        write_private(path, json.dumps({"current": self.current, "contexts": contexts}, indent=2).encode())
        return path

    def use(self, name: str) -> "Contexts":
        """Logins with another one in use. Raises Failure for an unknown name."""
        if name != LOCAL:
            self.named(name)
        return replace(self, current=name)

    def add(self, name: str, login: ApiLogin) -> "Contexts":
        """Logins with one more, which is then in use."""
        return Contexts({**self.logins, name: login}, name)

    def drop(self, name: str) -> "Contexts":
        """Logins without the named one. Raises Failure for an unknown name."""
        self.named(name)
        logins = {other: login for other, login in self.logins.items() if other != name}
        return Contexts(logins, LOCAL if self.current == name else self.current)

    def named(self, name: str) -> ApiLogin:
        """Raises Failure for a name that is not there."""
        if name not in self.logins:
            known = ", ".join([LOCAL, *sorted(self.logins)])
            raise Failure(Exit.NOT_FOUND, f"context {name}: there is none; there are {known}")
        return self.logins[name]


def file_of(environment: Mapping[str, str]) -> Path:
    """Path of the file of contexts, by the XDG base directory specification."""
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "tessera" / "contexts.json"


def address_of(environment: Mapping[str, str]) -> str:
    """Address of the gateway that TESSERA_API names; "" for none. Raises Failure for what is no address."""
    url = environment.get(API_VARIABLE)
    return check_url(url, environment.get(PLAINTEXT_VARIABLE, "").lower() in ("1", "true", "yes")) if url else ""


def token_of(environment: Mapping[str, str], url: str) -> str:
    """
    Token of TESSERA_TOKEN, TESSERA_TOKEN_FILE or a saved login for the gateway at `url`; "" for none.

    Raises Failure for a file that cannot be read.
    """
    token, file = environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
    if not token and file:
        token = read_token(Path(file))
    if not token:
        token = next((login.token for login in Contexts.read(environment).logins.values() if login.url == url), "")
    return token


def login_of(environment: Mapping[str, str]) -> ApiLogin | None:
    """The login that TESSERA_API names; None without it. Raises Failure when there is no token."""
    url = address_of(environment)
    if not url:
        return None
    token = token_of(environment, url)
    if not token:
        raise Failure(
            Exit.USAGE,
            f"{API_VARIABLE}: no token for {url}; set {TOKEN_FILE_VARIABLE}, or run `tessera login {url}`",
        )
    return ApiLogin(url, token)


def check_url(url: str, plaintext_ok: bool = False) -> str:
    """
    The address without a slash at its end. Raises Failure for one that is none, or would send the token in clear.

    `plaintext_ok`: nobody listens on the network on which the token travels, as on that of containers of one host.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port beyond 65535
        is_address = False
    if not is_address:
        raise Failure(Exit.USAGE, f"{url}: not the address of a gateway; write https://HOST")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not plaintext_ok:
        raise Failure(Exit.USAGE, f"{url}: the token would travel unencrypted; use https")
    return url.rstrip("/")


def read_token(file: Path) -> str:
    """The token in a file. Raises Failure."""
    from tessera.client.input.files import read_text

    return read_text(file).strip()
