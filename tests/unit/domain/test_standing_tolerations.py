"""Standing tolerations of pools and tenants: in what decides and in the views, as soon as they are configured."""

from tessera.domain.work.phases import Phase
from tessera.projection.views import all_views
from tessera_schemas.config import Pool, Tenant
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Toleration
from tessera_schemas.reasons import Code
from tessera_schemas.views import NodeView
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
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


OWN = (("own", "", ""),)


def let_lab_bear(rounds: Rounds, *tolerations: Toleration) -> None:
    body = rounds.state.config.body
    tenants = (Tenant(name="lab", tolerations=tolerations), Tenant(name="other"))
    proposed = body.model_copy(update={"tenants": tenants})
    rounds.commit(config_proposed(proposed, rounds.state.config.version))


def test_a_job_waits_for_a_taint_until_its_tenant_bears_it_and_those_of_others_wait_on() -> None:
    rounds = Rounds(nodes=[TAINTED])
    rounds.submit("k1")
    rounds.commit(admitted("k2", job_spec(role(gpus=1)), tenant="other"))
    rounds.settle()
    let_lab_bear(rounds, Toleration(key="own"))
    rounds.settle()
    assert rounds.running("k1")
    (waits,) = [job for job in rounds.state.jobs.values() if job.tenant == "other"]
    assert waits.phase is Phase.QUEUED
    assert waits.reason is not None
    assert waits.reason.detail == "not tolerated: own=x:NoSchedule (1 node)"


def test_jobs_and_runs_have_the_tolerations_of_their_tenant_whichever_came_first() -> None:
    rounds = Rounds(nodes=[node_seen("node-a")])
    rounds.submit("k1")
    rounds.settle()
    found = [rounds.job("k1"), next(iter(rounds.state.runs.values()))]
    assert [each.roles[0].need.tolerated for each in found] == [(), ()]
    let_lab_bear(rounds, Toleration(key="own"))
    rounds.submit("k2")
    rounds.settle()
    found = [*rounds.state.jobs.values(), *rounds.state.runs.values()]
    assert [each.roles[0].need.tolerated for each in found] == [OWN] * 4
    let_lab_bear(rounds)
    found = [*rounds.state.jobs.values(), *rounds.state.runs.values()]
    assert [each.roles[0].need.tolerated for each in found] == [()] * 4


def test_a_run_grows_onto_nodes_that_its_tenant_came_to_bear() -> None:
    rounds = Rounds(nodes=[node_seen("node-b", gpus=1), TAINTED], grow_after_seconds=0)
    rounds.submit("k1", max_replicas=2)
    rounds.settle()
    (run,) = rounds.state.runs.values()
    assert not run.extra
    let_lab_bear(rounds, Toleration(key="own"))
    rounds.settle()
    (run,) = rounds.state.runs.values()
    assert [extra.placement.node for extra in run.extra] == ["node-a"]
