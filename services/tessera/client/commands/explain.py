"""`explain`: why a job stands where it stands, and what would let it start."""

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.completing import JobName
from tessera.client.explain import explanation_lines
from tessera.client.explaining import explain_job
from tessera.client.rendering import Output, show_value
from tessera.kernel.clock import SystemClock


@command
async def explain(at: AccessOptions, job: JobName, output: Format = Output.TABLE) -> None:
    """Say why a job stands where it stands, who holds what it needs, what would let it start, and its story."""
    found = await explain_job(at.find(), job, at.identity)
    if output.for_programs:
        show_value(output, found, found.pop("as_of"))
    else:
        print("\n".join(explanation_lines(found, SystemClock().now_ms())))
