"""`datasets`: which nodes have which data sets, as runs show and tenants tell; a job that reads one where it lacks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.sessions.options import SessionOptions, session_of
from tessera.client.commands.sessions.reaching import volumes_of
from tessera.client.connect.connecting import api_of
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import submitting
from tessera.client.sending.sending_by_api import tell_by_api
from tessera.client.views.rendering import Column, Output, show
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Json
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.text.quantities import QuantityError, quantity
from tessera_schemas.text.units import format_age, format_memory

datasets = typer.Typer(help="List data sets with the nodes that have them; read one.", invoke_without_command=True)
NODES_NAMED = 4
HOST_LABEL = "kubernetes.io/hostname"
TOLD = {
    "accepted": "its places are told",
    "known": "that was known",
    "stored": "its places are stored",
}


@datasets.callback()
@command
async def show_datasets(ctx: typer.Context, at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List the data sets that nodes have, as runs have shown and nodes and tenants say, or that waiting jobs read."""
    if ctx.invoked_subcommand is None:
        found = await api_of(at.find(), at.identity).get("/v1/datasets")
        show(output, _columns(SystemClock().now_ms()), found["items"], found["as_of"])


@datasets.command()
@command
async def warm(
    at: AccessOptions,
    options: SessionOptions,
    dataset: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set, as jobs give it")],
    words: Annotated[list[str], typer.Argument(metavar="COMMAND", help="After `--`: reads the data set")],
    image: Annotated[str, typer.Option(help="Image of the pods")],
    where: Annotated[str, typer.Option("--in", metavar="LABEL=VALUE", help="Domain: label of its nodes, and value")],
    size: Annotated[str | None, typer.Option(help="Bytes of the data set, as 500Gi; else as the last run said")] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes of the domain that are to have it", min=1)] = 1,
    volume: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM:/PATH[:ro]", help="Volume claim of the namespace, and where")
    ] = None,
) -> None:
    """
    Submit a job that reads a data set in a domain where fewer than --nodes nodes have it, so that later jobs find it.

    Example: `tessera datasets warm corpus --in example.com/rack=r3 --image IMAGE -- cat /data/*`. The job is of class
    low where --priority says no other.
    """
    api = api_of(at.find(), at.identity)
    listed, known = (await api.get("/v1/datasets"))["items"], (await api.get("/v1/nodes"))["items"]
    domain, size_bytes = domain_of(where), bytes_of(dataset, size, listed)
    there = nodes_with(listed, known, dataset, *domain)
    if len(there) >= nodes:
        print(f"{dataset} is in {where} already, on {_some_nodes(there)}: nothing is submitted")
        return
    named = replace(options, name=options.name or f"warm-{dataset}"[:63], priority=options.priority or "low")
    reads: Json = {"datasets": [{"name": dataset, "size_bytes": size_bytes}]}
    asked = await session_of(at, named, image, words, {"volumes": volumes_of(volume or ())}, reads)
    asked["spec"]["roles"][0] |= placed(domain, nodes - len(there), hosts_of(known, there))
    async with submitting.submitted(at.find(), at.identity, asked, options.key) as sent:
        print(f"job {sent.done.job_id}", flush=True)


@datasets.command("tell")
@command
async def report_places(
    at: AccessOptions,
    dataset: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set, as jobs give it")],
    size: Annotated[str | None, typer.Option(help="Bytes of the data set, as 500Gi; else as it was said last")] = None,
    on: Annotated[list[str] | None, typer.Option(metavar="NODE", help="Node that has it now")] = None,
    gone: Annotated[list[str] | None, typer.Option(metavar="NODE", help="Node that has it no more")] = None,
) -> None:
    """
    Say which nodes have a data set of the tenant, and which have it no more; nothing is said of others.

    Example: `tessera datasets tell corpus --size 500Gi --on gpu-1 --gone gpu-2`. It counts as a use of the data set.
    """
    api = api_of(at.find(), at.identity)
    if not on and not gone:
        raise Failure(Exit.USAGE, "name a node with --on or --gone")
    listed = (await api.get("/v1/datasets"))["items"] if on and size is None else ()
    size_bytes = bytes_of(dataset, size, listed) if on else 0
    answer = await tell_by_api(api, dataset, _places(size_bytes, on or (), gone or ()))
    print(f"{dataset}: {TOLD[answer['state']]}")


def _places(size_bytes: int, nodes: Sequence[str], gone: Sequence[str]) -> ToldPlaces:
    try:
        return ToldPlaces(size_bytes=size_bytes, nodes=tuple(nodes), gone=tuple(gone))
    except ValidationError as error:
        raise Failure(Exit.USAGE, f"--on, --gone: {error.errors()[0]['msg']}") from error


def domain_of(said: str) -> tuple[str, str]:
    """Label and value of a domain. Raises Failure."""
    label, equals, value = said.partition("=")
    if not equals or not label or not value:
        raise Failure(Exit.USAGE, f"--in {said}: write LABEL=VALUE, as topology.kubernetes.io/zone=a")
    return label, value


def nodes_with(listed: Iterable[Json], known: Iterable[Json], name: str, label: str, value: str) -> list[str]:
    """Nodes of the domain that have the data set, in order."""
    inside = {node["name"] for node in known if node["labels"].get(label) == value}
    if not inside:
        raise Failure(Exit.USAGE, f"--in {label}={value}: no node has this label with this value")
    has = {node for row in listed if row["dataset"] == name for node in (*row["nodes"], *row.get("told_nodes", ()))}
    return sorted(inside & has)


def bytes_of(name: str, size: str | None, listed: Iterable[Json]) -> int:
    """Size of the data set, as it was said here or by the last run that read it. Raises Failure."""
    if size is None:
        found = next((row["size_bytes"] for row in listed if row["dataset"] == name and row["size_bytes"]), 0)
        if not found:
            raise Failure(Exit.USAGE, f"--size: no run has read {name} yet; write its size, as --size 500Gi")
        return int(found)
    try:
        return int(quantity(size))
    except QuantityError as error:
        raise Failure(Exit.USAGE, f"--size {size}: write bytes, as 500Gi") from error


def hosts_of(known: Iterable[Json], names: Sequence[str]) -> list[str]:
    """Labels by which Kubernetes tells these nodes apart."""
    return sorted({node["labels"].get(HOST_LABEL, node["name"]) for node in known if node["name"] in names})


def placed(domain: tuple[str, str], nodes: int, besides: Sequence[str]) -> Json:
    """Place of the role's pods: each on a node of the domain of its own, and none on those that have the data set."""
    # The pods name the data set, and would go where it is.
    apart = [{"key": HOST_LABEL, "operator": "NotIn", "values": list(besides)}] if besides else []
    label, value = domain
    return {"replicas": nodes, "node_selector": {label: value}, "affinity": apart, "anti_affinity": [{}]}


def _columns(now_ms: int) -> list[Column[dict[str, Any]]]:
    return [
        Column("DATASET", lambda row: row["dataset"], shrinks=True),
        Column("TENANT", lambda row: row["tenant"], shrinks=True),
        Column("SIZE", lambda row: format_memory(row["size_bytes"]) if row["size_bytes"] else "", right=True),
        Column("LAST USED", lambda row: _ago(row["used_ts"], now_ms), right=True),
        Column("WAITING", lambda row: str(row.get("waiting") or ""), right=True),
        Column("NODES", lambda row: _some_nodes(sorted({*row["nodes"], *row.get("told_nodes", ())})), shrinks=True),
    ]


def _ago(ts: int, now_ms: int) -> str:
    return f"{format_age(now_ms - ts)} ago" if ts else ""


def _some_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NODES_NAMED} more" if len(nodes) > NODES_NAMED else ""
    return ", ".join(nodes[:NODES_NAMED]) + more
