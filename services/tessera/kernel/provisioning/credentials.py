"""
Identities with their passwords, kept in one directory: a JSON file each (0600, the directory 0700).

From these files the authorisation of nats-server and the ACL of Redis are rendered again whenever an identity comes
or changes, so that the directory is the only list of who exists. Passwords are random and never printed.

Shards that share their servers share the directory: the main shard's identities lie in it, those of another in a
folder of its name, and the two server files hold the identities of all.
"""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.kernel import ids
from tessera.kernel.errors import StartupError
from tessera.kernel.ports import Clock
from tessera.kernel.process.files import write_private
from tessera.kernel.provisioning.credential_files import (
    Credential,
    CredentialDirectory,
    Identity,
    Login,
    read_credential,
)
from tessera.kernel.provisioning.permissions import allowed, redis_nobody, redis_rules, tenant_border
from tessera_schemas import subjects
from tessera_schemas.config import Tenant
from tessera_schemas.shard.services import BY_NAME, RESERVED_NAMES, SERVICES

if TYPE_CHECKING:
    import aiohttp

SYSTEM_ACCOUNT = "TESSERA"
RELOAD_SECONDS = 5.0
NOTIFIER = "notifier"
CONSUMER_INFO = "$JS.API.CONSUMER.INFO."


def system_identities() -> tuple[Identity, ...]:
    """The identities that every shard has: one per service, the operator, and the administrator of its streams."""
    return tuple(Identity(name, name) for name in (*SERVICES, subjects.OPERATOR, subjects.ADMINISTRATOR))


def tenant_identity(tenant: str, subscribers: Iterable[str] = ()) -> Identity:
    """Raises StartupError for a name that could not stand in a subject or is somebody else's."""
    subscribers = tuple(sorted(subscribers))
    for name in (tenant, *subscribers):
        if not subjects.NAME.fullmatch(name):
            raise StartupError(f"tenant {tenant!r}: the name {name!r} must match [a-z0-9-]{{1,63}}; choose another")
    if tenant in RESERVED_NAMES:
        raise StartupError(f"tenant {tenant!r}: the name belongs to Tessera itself; choose another")
    return Identity(tenant, subjects.TENANT, subscribers)


def notifier_identity(tenants: Iterable[Tenant]) -> Identity:
    """The notifier, which may read for these tenants' webhooks and nobody else's durables."""
    names = (f"{tenant.name}_{webhook.name}" for tenant in tenants for webhook in tenant.webhooks)
    return Identity(NOTIFIER, NOTIFIER, tuple(sorted(names)))


def ensure_identities(directory: CredentialDirectory, identities: Sequence[Identity]) -> bool:
    """
    Make what is missing, keep every password that exists, render the server files; True when anything changed.

    An identity that is there already takes over the subscribers given now.
    """
    for folder in (directory.root, directory.path):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    changed = [_ensure_one(directory, identity) for identity in identities]
    everybody = all_shards(directory.root)
    rendered = [
        _write_if_changed(directory.nats_file, render_nats(everybody)),
        _write_if_changed(directory.redis_file, render_redis(everybody)),
    ]
    return any(changed) or any(rendered)


def _ensure_one(directory: CredentialDirectory, identity: Identity) -> bool:
    path = directory.file(identity.name)
    fresh = _new_credential(identity, directory.shard)
    if path.exists():
        old = read_credential(path)  # a role may have got business at Redis or Kubernetes since
        if identity.role == NOTIFIER and not identity.subscribers:  # `init` does not know of webhooks
            identity = replace(identity, subscribers=old.identity.subscribers)
        fresh = Credential(identity, old.nats, old.redis or fresh.redis, old.cluster_token or fresh.cluster_token)
    return _write_if_changed(path, json.dumps(asdict(fresh), indent=2) + "\n")


def all_shards(root: Path) -> dict[str, list[Credential]]:
    """
    All credentials below `root`, by shard.

    Raises StartupError for a copy of another shard's: servers refuse the whole list for a user that it names twice.
    """
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and subjects.NAME.fullmatch(folder.name)]
    shards = [subjects.MAIN_SHARD, *(folder.name for folder in folders)]
    found = {shard: CredentialDirectory(root, shard).all() for shard in shards}
    for shard, credentials in found.items():
        for who in credentials:
            if who.nats.user != subjects.user(who.identity.name, shard):
                folder = CredentialDirectory(root, shard).path
                raise StartupError(f"credentials: {folder} holds {who.nats.user}, of another shard; move it elsewhere")
    return {shard: credentials for shard, credentials in found.items() if credentials}


def _new_credential(identity: Identity, shard: str) -> Credential:
    spec = BY_NAME.get(identity.role)
    has_redis = redis_rules(identity.role, shard) is not None
    user = subjects.user(identity.name, shard)
    return Credential(
        identity,
        nats=Login(user, ids.password()),
        redis=Login(user, ids.password()) if has_redis else None,
        cluster_token=ids.password() if identity.role == subjects.OPERATOR or (spec and spec.calls_cluster) else "",
    )


def render_nats(everybody: Mapping[str, Sequence[Credential]]) -> str:
    """
    The `accounts` block of nats-server for the identities of every shard; JSON is a part of its configuration language.

    A shard's services and its operator share one account, which holds its streams: nobody of another shard can name
    them. Each tenant has its own, joined to its shard's by nothing but its allow-lists. Allow-lists alone are not
    enough: a reply subject is not checked against them, so that inside one account a tenant could have the
    acknowledgement of its submit stored as a ledger record.
    """
    accounts = {name: body for shard, found in everybody.items() for name, body in _accounts(found, shard).items()}
    return f"accounts: {json.dumps(accounts, indent=1)}\n"


def _accounts(credentials: Sequence[Credential], shard: str) -> dict[str, dict[str, Any]]:
    tenants = [credential for credential in credentials if credential.identity.role == subjects.TENANT]
    system = [credential for credential in credentials if credential.identity.role != subjects.TENANT]
    accounts: dict[str, dict[str, Any]] = {
        _account(SYSTEM_ACCOUNT, shard): {
            "jetstream": "enabled",
            "users": [_user(credential, shard) for credential in system],
            "exports": _exports(shard),
        }
    }
    for tenant in tenants:
        accounts[_account(f"TENANT_{tenant.identity.name}", shard)] = {
            "users": [_user(tenant, shard)],
            "imports": _imports(tenant.identity, shard),
            "mappings": {subject: _aside(subject) for subject in _own_consumers(tenant.identity, shard)},
        }
    return accounts


def _user(credential: Credential, shard: str) -> dict[str, Any]:
    lists = allowed(credential.identity, shard)
    aside = map(_aside, _own_consumers(credential.identity, shard))  # nats-server looks at both names
    permissions = {"publish": {"allow": [*lists.publish, *aside]}, "subscribe": {"allow": lists.subscribe}}
    return {"user": credential.nats.user, "password": credential.nats.password, "permissions": permissions}


def _account(name: str, shard: str) -> str:
    """The underscore is in no name of a tenant or shard."""
    return name if shard == subjects.MAIN_SHARD else f"{name}_{shard}"


def _exports(shard: str) -> list[dict[str, Any]]:
    """
    Subjects of which tenants' accounts may import a part; only this file says which account imports which part.

    The same whatever tenants there are, so that a new one changes nothing in the account of the services.
    """
    border = tenant_border(shard)
    # A pull is answered by many messages, anything else by one.
    kind = {subject: "Stream" if ".MSG.NEXT." in subject else "Singleton" for subject in border.publish}
    services = [{"service": subject, "response_type": kind[subject]} for subject in border.publish]
    return [*services, *({"stream": subject} for subject in border.subscribe)]


def _imports(tenant: Identity, shard: str) -> list[dict[str, Any]]:
    lists, aside = allowed(tenant, shard), _own_consumers(tenant, shard)
    account = _account(SYSTEM_ACCOUNT, shard)
    services = [
        {"service": {"account": account, "subject": subject}} | ({"to": _aside(subject)} if subject in aside else {})
        for subject in lists.publish
    ]
    return [*services, *({"stream": {"account": account, "subject": subject}} for subject in lists.subscribe)]


def _own_consumers(tenant: Identity, shard: str) -> list[str]:
    """Requests for the state of the tenant's own durables, with which clients open a consumer that exists."""
    if tenant.role != subjects.TENANT:
        return []
    return [subject for subject in allowed(tenant, shard).publish if subject.startswith(CONSUMER_INFO)]


def _aside(subject: str) -> str:
    """
    The name that such a request has inside the tenant's account.

    The server answers `$JS.API.>` in every account, also in one without JetStream: by its own name the request got
    two answers, of which the first one was "JetStream not enabled for account" (seen with 2.15.1).
    """
    return f"own.{subject.removeprefix('$JS.API.')}"


def render_redis(everybody: Mapping[str, Sequence[Credential]]) -> str:
    """
    The ACL file of Redis: each user has the keys of its shard alone.

    Passwords stand in it as SHA-256, which is enough for 256 random bits. Nobody can log in as `default`.
    """
    lines = [redis_nobody(list(everybody))]
    for shard, credential in ((shard, credential) for shard, found in everybody.items() for credential in found):
        rules = redis_rules(credential.identity.role, shard)
        if rules is not None and credential.redis is not None:
            digest = hashlib.sha256(credential.redis.password.encode()).hexdigest()
            lines.append(f"user {credential.redis.user} #{digest} {rules}")
    return "\n".join(lines) + "\n"


async def reload_nats(pid: int, monitor_url: str, clock: Clock) -> None:
    """
    Have a nats-server of this machine read its authorisation again; connections of unchanged users stay.

    Raises StartupError when it still runs the old configuration after RELOAD_SECONDS.
    """
    # Twice: an account that comes with a reload has its service imports only after the next one (seen with 2.15.1).
    for _ in range(2):
        await _reload_once(pid, monitor_url, clock)


async def _reload_once(pid: int, monitor_url: str, clock: Clock) -> None:
    import aiohttp  # who only reads credentials does without

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=RELOAD_SECONDS)) as http:
        before = await _loaded_at(http, monitor_url)
        os.kill(pid, signal.SIGHUP)
        try:
            async with asyncio.timeout(RELOAD_SECONDS):
                while await _loaded_at(http, monitor_url) == before:
                    await clock.sleep(0.01)
        except TimeoutError as error:
            raise StartupError(f"nats-server {pid}: did not reload; its log names the mistake") from error


async def _loaded_at(http: "aiohttp.ClientSession", monitor_url: str) -> str:
    async with http.get(f"{monitor_url.rstrip('/')}/varz") as answer:
        return str((await answer.json())["config_load_time"])


def _write_if_changed(path: Path, text: str) -> bool:
    """Replace a file unless it says so already; tells whether it was."""
    if path.exists() and path.read_text() == text:
        return False
    write_private(path, text.encode())
    return True
