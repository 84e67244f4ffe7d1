"""`explain`: why a job stands where it stands, and what would let it start."""

from tessera.client import ordering
from tessera.client.api import Api, path_of
from tessera.client.commands.context import PROGRAMS, AccessOptions, Format, command, stored_ledger
from tessera.client.explain import explain as explained_by
from tessera.client.explain import explained, explanation_lines, story_lines, time_limits, wrapped
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import Output, show_value
from tessera.client.where import Where
from tessera.kernel.clock import SystemClock
from tessera_schemas.subjects import OPERATOR


@command
async def explain(at: AccessOptions, job: str, output: Format = Output.TABLE) -> None:
    """Say why a job stands where it stands, who holds what it needs, what would let it start, and its story."""
    where = at.find()
    if where.api is not None and at.identity is None:
        await _explain_by_api(where, where.api, job, output)
        return
    viewer = _viewer(where, at.identity)
    async with stored_ledger(where) as ledger:
        job_id = await ordering.find_job_id(where, job)
        state, now = (await ledger.folded()).state, SystemClock().now_ms()
        known = state.jobs.get(job_id) or state.ended.get(job_id) or state.refused.get(job_id)
        if viewer is not None and (known is None or known.tenant != viewer):
            raise _unknown(job)
        answer = explained_by(state, job_id, now, viewer)
        lines = await ledger.story(job_id, getattr(known, "taken_n", 1), all_names=viewer is None)
        until = {} if answer is None else await time_limits(ledger.ledger, answer.holders)
    if answer is None and not lines:
        raise _unknown(job)
    if output in PROGRAMS:
        show_value(output, explained(answer, lines, until), state.n)
        return
    if answer is None:
        print("It is in no queue: it was never taken in, or its key is remembered no more.")
    else:
        print("\n".join(explanation_lines(answer, until, now)))
    print("\n" + "\n".join(story_lines(lines)))
    print(f"as of {state.n}")


async def _explain_by_api(where: Where, api: Api, job: str, output: Output) -> None:
    """Answer of the gateway, which folds the ledger itself; it tells no holders and no story."""
    found = await api.get(path_of(await ordering.find_job_id(where, job), "explain"))
    if output in PROGRAMS:
        show_value(output, {name: value for name, value in found.items() if name != "as_of"}, found["as_of"])
        return
    lines = [found["sentence"]]
    if found.get("position"):
        lines.append(f"Place {found['position']} of {found['in_line']} in the queue order.")
    for line in [*lines, *found.get("notes", ())]:
        print("\n".join(wrapped(line)))
    print(f"as of {found['as_of']}")


def _unknown(job: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"job {job}: the ledger knows none with this id or name; see `tessera ls`")


def _viewer(where: Where, identity: str | None) -> str | None:
    """Tenant that it is shown to; None for an operator. Only an operator can read the ledger."""
    if not where.can_be(OPERATOR):
        raise Failure(Exit.USAGE, "explain: only the operator reads the ledger; log in by HTTP: `tessera login URL`")
    return None if identity in (None, OPERATOR) else where.tenant(identity).identity.name
