"""Whatever an explanation offers, the committer then does: the job, changed so, starts in the very next message."""

import re
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tessera.engine.explain.explanation import explain
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import CancelRequested, DrainRequested, HoldRequested
from tessera_schemas.job import Topology
from tessera_schemas.reasons import Code
from tests.builders import node_seen
from tests.rounds import Rounds

RACK = "rack"
MODELS = ("h100", "a100")


@st.composite
def shards(draw: st.DrawFn) -> Rounds:
    """A few nodes, two queues, and jobs that run or wait; nobody is evicted for anybody."""
    nodes = [
        node_seen(
            f"node-{at}",
            draw(st.integers(1, 8)),
            gpu_model=draw(st.sampled_from(MODELS)),
            labels={RACK: draw(st.sampled_from("ab"))},
        )
        for at in range(draw(st.integers(1, 4)))
    ]
    strategy = draw(st.sampled_from(("best_effort_fifo", "strict_fifo")))
    quota = Quota(resource="gpu_milli", nominal=draw(st.integers(0, 16)) * 1000)
    queues = (Queue(name="research", queueing_strategy=strategy), Queue(name="other", quotas=(quota,)))
    rounds = Rounds(*queues, nodes=nodes, preset="off")
    for number in range(draw(st.integers(0, 6))):
        rounds.submit(f"job-{number}", queue=draw(st.sampled_from(("research", "other"))), **draw(shapes()))
        if draw(st.booleans()):
            rounds.settle()
    if draw(st.booleans()):
        rounds.commit(DrainRequested(kind="drain_requested", node="node-0"))
    return rounds


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    asked: dict[str, Any] = {"gpus": draw(st.integers(1, 8)), "pods": draw(st.integers(1, 3))}
    asked["priority"] = draw(st.sampled_from(("low", "normal", "high")))
    if draw(st.booleans()):
        asked["gpu_models"] = (draw(st.sampled_from(MODELS)),)
    if draw(st.booleans()):
        asked["topology"] = Topology(level=RACK)
    return asked


def changed(kind: str, text: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """What was asked, with the change made; None for a change that is not one of the job."""
    first = (re.findall(r"\d+", text) or ["0"])[0]
    match kind:
        case "gpus" | "pods":
            return {**asked, kind: int(first)}
        case "model":
            return {name: value for name, value in asked.items() if name != "gpu_models"}
        case "topology":
            return {name: value for name, value in asked.items() if name != "topology"}
        case "queue":
            return {**asked, "queue": text.split()[1]}
        case "class":
            return {**asked, "priority": text.split()[2]}
    return None


@settings(max_examples=200)
@given(shards(), shapes(), st.sampled_from(("research", "other")), st.booleans(), st.data())
def test_a_change_that_is_offered_starts_the_job_at_once(
    rounds: Rounds, asked: dict[str, Any], queue: str, held: bool, data: st.DataObject
) -> None:
    asked = {**asked, "queue": queue}
    job = rounds.submit("it", **asked)
    if held:
        rounds.commit(HoldRequested(kind="hold_requested", job_id=job))
    rounds.settle()
    if rounds.running("it"):
        return
    answer = explain(rounds.state, job, rounds.ts)
    assert answer is not None
    assert answer.reason is not None
    recorded = rounds.job("it").reason
    assert recorded is not None
    assert answer.reason.code is recorded.code
    if not answer.changes:
        event("nothing offered")
        return
    change = data.draw(st.sampled_from(answer.changes))
    event(change.kind)
    if change.kind == "release":
        rounds.commit(HoldRequested(kind="hold_requested", job_id=job, undo=True))
    elif change.kind == "undrain":
        rounds.commit(DrainRequested(kind="drain_requested", node="node-0", undo=True))
    elif change.kind == "end":
        rounds.finish(rounds.name(change.after[0].rsplit("-", 1)[0]))
    else:
        made = changed(change.kind, change.text, asked)
        assert made is not None
        cancelled = rounds.commit(CancelRequested(kind="cancel_requested", job_id=job))
        if any(record.kind == "allocated" for record in cancelled.records):
            event(
                "its place in line is lost"
            )  # whoever a strict queue kept behind it starts; the offer is for its place
            return
        rounds.submit("changed", **made)
    rounds.commit(orders=[rounds.line()])
    name = "it" if change.kind in ("release", "undrain", "end") else "changed"
    run = rounds.run(name)
    assert run is not None, (change, answer.reason)
    if change.kind != "end":
        assert tuple(sorted({placement.node for placement in run.placements})) == change.nodes
    assert rounds.job(name).reason is None or rounds.job(name).reason.code is not Code.NO_FIT
