"""Traces of jobs: ids that everybody derives alike, and nothing at all where nobody collects them."""

import subprocess
import sys

from tessera.kernel.service.spans import NO_SPANS, job_span, step_span
from tessera.kernel.service.trace import take_trace, trace_of_job
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
JOB = "a" * 20


def test_steps_of_a_job_stand_below_the_job_and_the_job_below_its_caller() -> None:
    job, step = job_span(JOB, CALLER, 1, 5), step_span("queue", JOB, CALLER, 1, 3, attempt=1)
    assert {span.header.split("-")[1] for span in (job, step)} == {CALLER.split("-")[1]}
    assert (job.parent, step.parent) == (CALLER.split("-")[2], job.header.split("-")[2])
    assert step.header != step_span("queue", JOB, CALLER, 1, 3, attempt=2).header


def test_a_job_that_nobody_traces_has_a_valid_trace_of_its_own() -> None:
    job, other = job_span(JOB, "", 1, 5), job_span("b" * 20, "", 1, 5)
    assert job.parent == ""
    assert take_trace({"traceparent": job.header}) == trace_of_job(JOB, "") == job.header
    assert job.header != other.header


def test_the_exporter_is_not_loaded_where_nobody_collects_spans() -> None:
    loads = "import sys, tessera.kernel.process.lifecycle as _; print('opentelemetry.exporter' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), NO_SPANS.on) == ("False", False)


async def test_what_the_binder_publishes_of_a_traced_job_belongs_to_its_trace() -> None:
    async with World() as world:
        await world.commit(admitted("traced", train()).model_copy(update={"trace": CALLER}))
        await world.commit(admitted("alone", train()))
        await world.run(3)
        stored = world.broker.stream("FACTS_main").messages.values()
        made = [take_trace(message.headers) for message in stored if message.subject.endswith("pods-made")]
    assert sorted(bool(header) for header in made) == [False, True]
    assert CALLER.split("-")[1] in max(made)
