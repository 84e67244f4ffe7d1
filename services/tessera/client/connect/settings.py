"""Client settings from the environment: where the shard is, and our identity there."""

from dataclasses import replace
from pathlib import Path

from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.provisioning.credential_files import (
    Credential,
    CredentialDirectory,
    Identity,
    Login,
    read_credential,
)
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES


class ClientSettings(ServiceSettings):
    """The same settings as a service's, of which only the servers and the identity are used."""


def from_settings(wanted: str | None) -> Where:
    """Raises StartupError for wrong settings, Failure when the credentials are of another shard than `wanted`."""
    settings = load_settings(ClientSettings)
    named = subjects.shard_of(settings.nats_user)
    shard = wanted or (settings.shard if named == subjects.MAIN_SHARD else named)
    if named not in (subjects.MAIN_SHARD, shard):
        raise Failure(
            Exit.USAGE,
            f"shard {shard}: these credentials are of shard {named}; set TESSERA_CREDENTIALS_FILE to the right file",
        )
    if settings.credentials_file is not None:
        single = read_credential(settings.credentials_file)
    else:
        name = subjects.identity_of(settings.nats_user)
        role = name if name in (*SERVICES, subjects.OPERATOR, subjects.ADMINISTRATOR) else subjects.TENANT
        redis = Login(settings.redis_user, settings.redis_password.get_secret_value()) if settings.redis_user else None
        single = Credential(
            Identity(name, role), Login(settings.nats_user, settings.nats_password.get_secret_value()), redis
        )
    folder = _folder_of(settings.credentials_file, single, shard)
    return Where(
        shard,
        settings.nats_url,
        settings.redis_url,
        settings.nats_monitor_url,
        folder,
        replace(single, cluster_token=settings.cluster_token.get_secret_value()),
        cluster_url=settings.cluster_url,
    )


def _folder_of(file: Path | None, single: Credential, shard: str) -> Path | None:
    """The directory that `init` wrote, where the operator's file still is in it: then `apply` adds tenants there."""
    if file is None or single.identity.role != subjects.OPERATOR:
        return None
    root = file.parent if shard == subjects.MAIN_SHARD else file.parent.parent
    directory = CredentialDirectory(root, shard)
    return root if directory.nats_file.exists() and directory.file(single.identity.name) == file else None
