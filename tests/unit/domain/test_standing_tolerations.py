"""Standing tolerations of a pool: in what decides and in the views, from the moment that they are configured."""

from tessera.projection.views import all_views
from tessera_schemas.config import Pool
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Toleration
from tessera_schemas.reasons import Code
from tessera_schemas.views import NodeView
from tests.builders import config_body, config_proposed, node_seen
from tests.rounds import Rounds
from tests.unit.engine.engine_builders import taint

TAINTED = node_seen("node-a", taints=(taint("own", "x"),))


def bear(rounds: Rounds, *tolerations: Toleration) -> None:
    rules, pool = rounds.state.config.body.policy.model_dump(), Pool(name="default", tolerations=tolerations)
    body = config_body(policy=rules, pools=(pool,))
    rounds.commit(config_proposed(body, rounds.state.config.version))


def tolerated(rounds: Rounds) -> list[tuple[tuple[str, str, str], ...]]:
    shown = [NodeView.from_bytes(c.value) for c in all_views(rounds.state) if c.view == "nodes" and c.value is not None]
    assert [view.tolerated for view in shown] == [node.tolerated for node in rounds.state.nodes.values()]
    return [view.tolerated for view in shown]


def test_a_job_waits_for_a_taint_until_the_pool_bears_it() -> None:
    rounds = Rounds(nodes=[TAINTED])
    rounds.submit("k1")
    rounds.settle()
    reason = rounds.job("k1").reason
    assert reason is not None
    assert (reason.code, reason.detail) == (Code.NO_FIT, "not tolerated: own=x:NoSchedule (1 node)")
    bear(rounds, Toleration(key="own"))
    rounds.settle()
    assert rounds.running("k1")


def test_nodes_have_the_tolerations_of_their_pool_whichever_came_first() -> None:
    rounds = Rounds(nodes=[TAINTED])
    assert tolerated(rounds) == [()]
    bear(rounds, Toleration(key="own", effect="NoSchedule"), Toleration(key="b", operator="Equal"))
    found = (("b", "=", ""), ("own", "", "NoSchedule"))
    rounds.commit(node_seen("node-b"), node_seen("node-c", pool="other"))
    assert tolerated(rounds) == [found, found, ()]
    rounds.commit(node_seen("node-b", gpus=4), NodeSeen(kind="node_seen", name="node-c", gone=True))
    assert tolerated(rounds) == [found, found]
    bear(rounds)
    assert tolerated(rounds) == [(), ()]
