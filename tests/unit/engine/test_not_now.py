"""A waiting job that no node suits now is told so, and not that it never starts."""

from tessera.engine.explain.explanation import explain
from tests.builders import node_seen
from tests.rounds import Rounds


def told(rounds: Rounds, key: str) -> str:
    found = explain(rounds.state, rounds.job(key).job_id, rounds.ts)
    assert found is not None
    return "\n".join(found.sentences)


def test_a_job_that_waits_for_a_device_plugin_is_told_that_nodes_have_suited_it() -> None:
    rounds = Rounds()
    rounds.commit(node_seen("node-a", gpus=0))
    rounds.submit("fits-at-best", gpus=8)
    rounds.submit("never", gpus=9)
    rounds.settle()
    assert "no node suits it as the nodes are now, but nodes have suited it before" in told(rounds, "fits-at-best")
    assert "Even empty, the pool could not hold it: " in told(rounds, "never")
    rounds.commit(node_seen("node-a"))
    rounds.settle()
    assert rounds.running("fits-at-best")
