"""`explain`: why a job stands where it stands, and what would let it start."""

from tessera.client.commands.context import As, Format, Home, InShard, carry_out, stored_ledger
from tessera.client.explain import explain as explained_by
from tessera.client.explain import explained, explanation_lines, story_lines, time_limits
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Output, show_value
from tessera.client.shard_views import ShardViews
from tessera.client.where import Where, find
from tessera.kernel.clock import SystemClock
from tessera_schemas.subjects import OPERATOR


def explain(
    job: str, output: Format = Output.TABLE, home: Home = None, shard: InShard = None, identity: As = None
) -> None:
    """Say why a job stands where it stands, who holds what it needs, what would let it start, and its story."""

    async def work() -> None:
        where = find(home, shard=shard)
        viewer = _viewer(where, identity)
        async with stored_ledger(where) as ledger:
            job_id = await _resolved(where, job)
            state, now = (await ledger.folded()).state, SystemClock().now_ms()
            known = state.jobs.get(job_id) or state.ended.get(job_id) or state.refused.get(job_id)
            if viewer is not None and (known is None or known.tenant != viewer):
                raise _unknown(job)
            answer = explained_by(state, job_id, now, viewer)
            lines = await ledger.story(job_id, getattr(known, "taken_n", 1), all_names=viewer is None)
            until = {} if answer is None else await time_limits(ledger.ledger, answer.holders)
        if answer is None and not lines:
            raise _unknown(job)
        if output in (Output.JSON, Output.YAML):
            show_value(output, explained(answer, lines, until), state.n)
            return
        if answer is None:
            print("It is in no queue: it was never taken in, or its key is remembered no more.")
        else:
            print("\n".join(explanation_lines(answer, until, now)))
        print("\n" + "\n".join(story_lines(lines)))
        print(f"as of {state.n}")

    carry_out(work())


def _unknown(job: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"job {job}: the ledger knows none with this id or name; see `tessera ls`")


def _viewer(where: Where, identity: str | None) -> str | None:
    """The tenant for whose eyes it is; None for an operator. Only an operator can read the ledger."""
    if not where.can_be(OPERATOR):
        raise Failure(
            Exit.USAGE, "explain: only the operator reads the ledger; ask the gateway, GET /v1/jobs/JOB/explain"
        )
    return None if identity in (None, OPERATOR) else where.tenant(identity).identity.name


async def _resolved(where: Where, named: str) -> str:
    """An id needs no view, so that a job is explained while Redis is away, and a refused one, too."""
    if len(named) == 20 and named.isalnum():
        return named
    async with where.store(where.identity(OPERATOR)) as store:
        return (await ShardViews(store).work(named)).job_id
