"""`health`: nodes that are not well, what is wrong with them and what is done about it; and a word of one's own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.slurm.listing.words import submitter
from tessera.client.views.rendering import Column, Output, local_time, show
from tessera.domain.health.node_tests import is_broken
from tessera_schemas.cluster.health import Ailment, HealthCause, KnownAilment
from tessera_schemas.commands import ReportHealth
from tessera_schemas.views import NodeView


@dataclass(frozen=True, slots=True)
class HealthRow:
    """One ailment of a node, or a node that is well."""

    node: NodeView
    known: KnownAilment | None

    def state(self) -> str:
        """Word for the action on the node."""
        if self.known is None:
            return "well"
        if self.node.overruled:
            return "overruled"
        if self.node.health_held_back:
            return "held back"
        # The detail of a request follows its first word, and is for `tessera doctor`.
        fence = f", fence {self.node.fence.partition(':')[0]}" if self.node.fence else ""
        return f"drained{fence}" if self.node.drained else "noted"

    def tested(self) -> str:
        """Outcome of the node's last test job, since when, and the job; of one that lives also what came before."""
        test = self.node.test
        if test is None:
            return ""
        when = local_time(test.ended_ts or test.since_ts)
        before = f", before: {test.passes} passed, {test.failures} failed" if test.passes or test.failures else ""
        return (
            f"{test.outcome or 'under test'} {when:%Y-%m-%d %H:%M}, job {test.job_id}{'' if test.outcome else before}"
        )


HEALTH: list[Column[HealthRow]] = [
    Column("NODE", lambda row: row.node.name, shrinks=True),
    Column("POOL", lambda row: row.node.pool, shrinks=True),
    Column("STATE", lambda row: row.state()),
    Column("CAUSE", lambda row: "" if row.known is None else row.known.ailment.cause),
    Column("SOURCE", lambda row: "" if row.known is None else row.known.source),
    Column("DEVICE", lambda row: "" if row.known is None else row.known.ailment.device, shrinks=True),
    Column("TESTED", lambda row: row.tested(), shrinks=True),
    Column("EVIDENCE", lambda row: "" if row.known is None else row.known.ailment.evidence, shrinks=True),
]


@command
async def health(
    at: AccessOptions,
    node: Annotated[str, typer.Argument(help="The node; left out, every node that is not well")] = "",
    cause: Annotated[
        HealthCause | None, typer.Option("--report", help="Say that the node has this, as the source `operator`")
    ] = None,
    evidence: Annotated[str, typer.Option("--evidence", help="What was seen, for the record")] = "",
    device: Annotated[str, typer.Option("--device", help="UUID of the device that is meant")] = "",
    well: Annotated[bool, typer.Option("--well", help="Take back what the source `operator` has said")] = False,
    output: Format = Output.TABLE,
) -> None:
    """
    List nodes that are not well: what is wrong, who says so, and what is done.

    `tessera undrain NODE` overrules all of it until the node was well once.
    """
    where = at.find()
    if cause is not None or well:
        ailments = () if cause is None else (Ailment(cause=cause, device=device, evidence=evidence),)
        await _report(where, at, node, ailments)
    views = views_of(where, at.identity)
    known = await views.nodes()
    found = [each for each in known if not each.gone and node in ("", each.name)]
    if node and not found:
        raise Failure(Exit.NOT_FOUND, f"node {node}: there is none in shard {where.shard}; see `tessera nodes`")
    show(output, HEALTH, list(_rows(found, bool(node))), None, explain_broken_test(known) or "")


def explain_broken_test(nodes: Iterable[NodeView]) -> str | None:
    """Why no node is tested any more; None where the test of the configuration can be believed."""
    tested = {node.name: node.test for node in nodes if node.test is not None}
    if not is_broken(tested.values()):
        return None
    failed = ", ".join(sorted(name for name, test in tested.items() if test.failures))
    return (
        f"The test of suspected nodes failed on {failed} and passed on none, so that it is run no more: mend "
        "`health.test`."
    )


def _rows(nodes: list[NodeView], well_too: bool) -> Iterator[HealthRow]:
    for node in sorted(nodes, key=lambda each: each.name):
        yield from (HealthRow(node, known) for known in node.ailments)
        if well_too and not node.ailments:
            yield HealthRow(node, None)


async def _report(where: Where, at: AccessOptions, node: str, ailments: tuple[Ailment, ...]) -> None:
    """Sends it, and waits until the views show it. Raises Failure."""
    ordering.check_operator(where, at.identity, "health", "report")
    if not node:
        raise Failure(Exit.USAGE, "health: say which node: `tessera health NODE --report CAUSE`")
    order = ReportHealth(kind="report_health", v=1, node=node, source="operator", ailments=ailments, by=submitter())
    await ordering.send(where, at.identity, order)

    async def carried_out(views: ShardViews) -> bool:
        known = [each for view in await views.nodes() if view.name == node for each in view.ailments]
        return tuple(each.ailment for each in known if each.source == "operator") == ailments

    if not await ordering.is_seen(where, carried_out):
        raise Failure(
            Exit.GAVE_UP,
            f"node {node}: the report is stored, but not taken in after {ordering.SEEN_SECONDS:g} s; it is once the "
            "services run, if there is such a node and the configuration has `health` (an action of `ignore` takes "
            "nothing in)",
        )
