"""`explain`: why a job stands where it stands, and what would let it start."""

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.completing import JobName
from tessera.client.explain import answered_lines, explanation_lines, story_lines
from tessera.client.explaining import explain_by_api, explain_for_programs, explain_from_ledger
from tessera.client.rendering import Output, show_value
from tessera.kernel.clock import SystemClock


@command
async def explain(at: AccessOptions, job: JobName, output: Format = Output.TABLE) -> None:
    """Say why a job stands where it stands, who holds what it needs, what would let it start, and its story."""
    where = at.find()
    if output.for_programs:
        found = await explain_for_programs(where, job, at.identity)
        show_value(output, found, found.pop("as_of"))
        return
    if where.api is not None and at.identity is None:
        answered = await explain_by_api(where, where.api, job)
        print("\n".join(answered_lines(answered, SystemClock().now_ms())))
        return
    known = await explain_from_ledger(where, job, at.identity)
    if known.answer is None:
        print("It is in no queue: it was never taken in, or its key is remembered no more.")
    else:
        print("\n".join(explanation_lines(known.answer, known.until, known.now_ms)))
    print("\n" + "\n".join(story_lines(known.story)))
    print(f"as of {known.as_of}")
