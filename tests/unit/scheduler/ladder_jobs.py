"""Two racks, and a job with a ladder whose runs fail or hang there."""

from typing import Any

from tessera.client.views.story import story
from tessera_schemas.config import Level, Queue
from tessera_schemas.facts import NodeSeen, RunEnded
from tessera_schemas.job import JobSpec, Retry, RetryLadder
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RunStalled
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.rounds import Rounds

RACK = "example.com/rack"
FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1})


def racks() -> list[NodeSeen]:
    """Two racks of three nodes each."""
    return [
        node_seen(f"{rack}-{number}", gpus=8).model_copy(update={"labels": {RACK: rack}})
        for rack in ("r1", "r2")
        for number in range(3)
    ]


def spec(ladder: RetryLadder | None, **more: Any) -> JobSpec:
    retry = Retry(on_failure=True, max_attempts=50, backoff_seconds=0, ladder=ladder)
    return job_spec(role(gpus=8)).model_copy(update={"retry": retry, **more})


def running(ladder: RetryLadder | None, levels: bool = True, **more: Any) -> Rounds:
    rounds = Rounds(nodes=racks())
    if levels:
        body = config_body(Queue(name="research"), topology=(Level(name="rack", label=RACK),))
        rounds.commit(config_proposed(body, rounds.state.config.version))
    rounds.commit(admitted("one", spec(ladder, **more)))
    rounds.settle()
    return rounds


def node(rounds: Rounds) -> str:
    return str(rounds.run("one").placements[0].node)


def told(rounds: Rounds, fact: Any) -> str:
    """The line on the rung in the story of what follows from a fact; the next run is running then."""
    message = rounds.commit(fact)
    lines = [line.text for line in story(message, rounds.job("one").job_id) if line.text.startswith("starts again")]
    rounds.commit(run_absent(rounds.run("one").run_id))
    rounds.commit(ms=60_000)
    rounds.settle()
    return "; ".join(lines)


def fail(rounds: Rounds) -> str:
    return told(rounds, RunEnded(kind="run_ended", run_id=rounds.run("one").run_id, rank=0, reason=FAILED))


def stall(rounds: Rounds, seconds: int = 60, code: Code = Code.HUNG) -> RunStalled:
    run = rounds.run("one")
    reason = Reason(code=code, numbers={"seconds": seconds, "step": 7})
    return RunStalled(kind="run_stalled", run_id=run.run_id, reason=reason, nodes=(run.placements[0].node,))
