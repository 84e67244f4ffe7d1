"""`ledger backup` and `ledger restore`: a copy of the ledger, and a ledger from one."""

from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.reading import StoredLedger, stored_ledger
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.live import progress_of
from tessera.client.views.rendering import Output, show_value
from tessera.kernel.ledger.generations import kept_messages
from tessera_schemas import subjects


@command
async def backup(
    at: AccessOptions,
    directory: Annotated[Path, typer.Argument(help="Where the copy is kept; what it holds already is not read again")],
    output: Format = Output.TABLE,
) -> Exit:
    """
    Copy what the ledger has gained since the last time, while everything runs.

    Prints the head of the copy; `tessera replay --verify --from-file DIRECTORY` proves it.
    """
    async with stored_ledger(at.find(), at.identity) as ledger:
        before = Backup.read(directory, ledger.shard)
        after = await extend(directory, ledger)
    gained = after.head.n - before.head.n
    if output.for_programs:
        value = {"head": str(after.head), "gained": gained, "segments": len(after.segments)}
        show_value(output, value, after.head.n)
    else:
        print(f"{after.head}\nmessages gained {gained}, segments {len(after.segments)}")
    return Exit.OK


async def extend(directory: Path, ledger: StoredLedger) -> Backup:
    """The backup in `directory` with what the ledger has gained. Raises Failure when it does not continue it."""
    before = Backup.read(directory, ledger.shard)
    if await ledger.count() < before.head.n:
        raise Failure(
            Exit.CONFLICT,
            f"the ledger ends at {ledger.head}, the backup at {before.head.n}: the ledger lost its end; "
            "keep both, and see docs/operations.md",
        )
    opening = await ledger.opening()
    if opening is not None:
        before = await before.opened(opening.state, kept_messages(ledger.ledger, opening.state))
    begin = max(before.head.n - 1, before.beginning.n)
    with progress_of("backup", await ledger.count() - begin) as advance:
        return await before.extended(ledger.messages(begin), advance)


@command
async def restore(
    directory: Annotated[Path, typer.Argument(help="A backup, as `tessera ledger backup` makes it")],
    credentials: Annotated[Path, typer.Option(help="Directory of the identities")] = Path("credentials"),
    replicas: Annotated[int, typer.Option(help="Copies of each stream: 3 in production", min=1, max=5)] = 1,
    ledger_gib: Annotated[int, typer.Option(help="GiB that the ledger may take", min=1)] = 8,
    events_gib: Annotated[int, typer.Option(help="GiB of public events; the oldest go when it is full", min=1)] = 4,
) -> Exit:
    """Put a ledger into servers that do not know its shard, in place of `tessera init`; no service may run."""
    from tessera.client.connect.settings import ClientSettings
    from tessera.client.ledger import restoring
    from tessera.kernel.nats.once import connect_once
    from tessera.kernel.process.settings import load_settings
    from tessera.kernel.provisioning.credential_files import CredentialDirectory
    from tessera.kernel.provisioning.streams import Bounds
    from tessera.kernel.redis.store import RedisStore

    kept = Backup.read(directory)
    last = restoring.last_of(kept)
    known = CredentialDirectory(credentials, kept.shard)
    operator, administrator = known.read(subjects.OPERATOR), known.read(subjects.ADMINISTRATOR)
    settings = load_settings(ClientSettings, credentials_file=None)
    if operator.redis is not None:
        store = RedisStore(settings.redis_url, operator.redis.user, operator.redis.password, kept.shard)
        try:
            await restoring.check_views(store, kept)
        finally:
            await store.close()
    admin = await connect_once(settings.nats_url, administrator.nats.user, administrator.nats.password)
    try:
        bounds = Bounds(replicas, ledger_gib * 1024**3, events_gib * 1024**3)
        await restoring.make_streams(admin, kept, last, bounds)
    finally:
        await admin.close()
    opened = await restoring.open_ledger(administrator.nats, settings.nats_url, kept)
    with progress_of("restore", kept.head.n) as advance:
        await restoring.append_all(known, settings.nats_url, kept, opened, advance)
    print("\n".join(restoring.summary(kept)))
    return Exit.OK
