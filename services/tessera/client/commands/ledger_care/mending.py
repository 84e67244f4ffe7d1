"""`ledger repair` and `ledger reconcile`: a way back from damage, proposed first and done by an operator."""

from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import cluster_of
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.reading import stored_ledger
from tessera.client.ledger.reconciling import disagreements
from tessera.client.ledger.repairing import examine, write_repair
from tessera.client.ledger.rolling import administrator_of
from tessera.client.ledger.witnesses import events_ahead, newest_known, orders_ahead
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.rendering import Output, plain, show_value
from tessera.kernel.ports import ApiError
from tessera_schemas import subjects


@command
async def repair(
    at: AccessOptions,
    directory: Annotated[
        Path | None, typer.Argument(help="New directory for the repaired ledger; none: only look")
    ] = None,
    backup: Annotated[Path | None, typer.Option(help="A backup of this ledger, which may know more of it")] = None,
    output: Format = Output.TABLE,
) -> Exit:
    """
    Say what is damaged and how much can be saved; with a directory, write that there, for `restore`.

    The stored ledger is never changed. Exit code 1 while it is damaged.
    """
    where = at.find()
    async with stored_ledger(where, at.identity) as ledger:
        copy = None if backup is None else Backup.read(backup, ledger.shard)
        found = await examine(ledger, copy, await newest_known(ledger, where))
        made = await write_repair(ledger, copy, found, directory) if found.damage and directory else None
    if output.for_programs:
        show_value(output, {**plain(found), "written": str(made.directory) if made else ""}, None)
    else:
        print("\n".join(found.lines()))
        if made is not None:
            print(f"written to {made.directory}: put it into empty servers with `tessera ledger restore`")
        elif found.damage:
            print("nothing was written: name a new directory for that")
    return Exit.FAILED if found.damage else Exit.OK


@command
async def reconcile(at: AccessOptions, output: Format = Output.TABLE) -> Exit:
    """
    Compare the pods of the cluster with the ledger, and propose what to do with those that it does not explain.

    Nothing is done. Exit code 1 when they disagree.
    """
    where = at.find()
    async with stored_ledger(where, at.identity) as ledger:
        state = (await ledger.folded()).state
    cluster = cluster_of(where)
    try:
        pods, _ = await cluster.list("pods")
    except ApiError as error:
        raise Failure(Exit.UNAVAILABLE, f"Kubernetes API at {cluster.url}: {error}") from error
    finally:
        await cluster.close()
    found = disagreements(state, pods, where.shard)
    if output.for_programs:
        items = [{**plain(one), "proposal": one.proposal, "commands": list(one.commands())} for one in found]
        show_value(output, {"items": items}, state.n)
    else:
        for one in found:
            print(f"{one.run_id} ({one.name} of {one.tenant}): {one.kind}")
            print(f"  {len(one.pods)} pods, {one.running} not ended. Proposal: {one.proposal}")
            print("\n".join(f"  {line}" for line in one.commands()) or "  -")
        print(f"as of {state.n}, {len(found)} runs on which cluster and ledger disagree")
    return Exit.FAILED if found else Exit.OK


@command
async def drop_ahead(
    at: AccessOptions, yes: Annotated[bool, typer.Option("--yes", help="Drop them; without it, only look")] = False
) -> None:
    """
    Drop public events and orders of records that the ledger lacks, where they are false; then restart what halted.

    Where the ledger did lose its end they are the proof of it: restore the ledger, and drop nothing.
    """
    where = at.find()
    async with stored_ledger(where, at.identity or subjects.ADMINISTRATOR) as ledger:
        tail = await ledger.ledger.tail()
        end = 0 if tail is None else tail.seq
        events, orders = await events_ahead(ledger, end), await orders_ahead(ledger, end)
    async with administrator_of(where, "run `tessera init`, and have NATS read its users again") as admin:
        for seq in events if yes else ():
            await admin.delete(subjects.stream("EVENTS", where.shard), seq)
        for subject in orders if yes else ():
            await admin.purge_subject(subjects.stream("ORDERS", where.shard), subject)
    print("\n".join([*(f"event {cursor}" for cursor in events.values()), *orders]))
    print(f"{len(events) + len(orders)} ahead of record {end}, {'dropped' if yes else 'kept: --yes drops them'}")
