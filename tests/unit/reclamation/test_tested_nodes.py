"""Suspected nodes are proposed for a test, which the binder makes as any job, on the node that it is for."""

from typing import Any

from structlog.testing import capture_logs

from tessera.domain.work.phases import Phase
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.facts import HealthReported
from tessera_schemas.job import Template
from tests.builders import config_proposed
from tests.unit.binder.cluster_world import RESERVED, World

A, B = "node-a", "node-b"
SUSPECTED = Ailment(cause=HealthCause.SUSPECTED, evidence="two jobs failed there")
LOOK = 15


def policy(exit_code: str = "0", seconds: str = "5") -> HealthPolicy:
    simulated = {f"{RESERVED}seconds": seconds, f"{RESERVED}exit-code": exit_code}
    template = Template(image="registry.example/all-reduce:1", annotations=simulated)
    test = HealthTest(tenant="lab", queue="research", template=template)
    return HealthPolicy(out_percent=50, reputation=ReputationPolicy(), test=test)


async def suspect(w: World, node: str = A, *ailments: Ailment) -> None:
    said: dict[str, Any] = {"node": node, "source": "agent", "ailments": ailments or (SUSPECTED,)}
    await w.commit(HealthReported(kind="health_reported", **said))


async def test_a_suspect_gets_one_test_job_whose_pod_runs_there() -> None:
    async with World(health=policy(seconds="100")) as w:
        await w.run(LOOK)
        assert w.said("node_test_proposed") == []
        await suspect(w)
        await w.run(LOOK)
        (fact,) = w.said("node_test_proposed")
        assert (fact.node, w.nodes_of(fact.job_id)) == (A, {A})
        (pod,) = w.pods(w.job(fact.job_id).run_id)
        assert pod["spec"]["containers"][0]["image"] == "registry.example/all-reduce:1"
        assert pod["spec"]["nodeName"] == A
        assert w.state.runs.get(w.job(fact.job_id).run_id).started


async def test_a_test_whose_program_fails_takes_the_node_out() -> None:
    async with World(health=policy(exit_code="1")) as w:
        await suspect(w)
        await w.run(2 * LOOK)
        (fact,) = w.said("node_test_proposed")
        assert w.job(fact.job_id).phase is Phase.FAILED
        assert f"test job {fact.job_id} failed there" in w.state.drains.get(A).why


async def test_a_test_that_passes_is_not_run_again_at_once() -> None:
    async with World(health=policy()) as w:
        await suspect(w)
        await w.run(4 * LOOK)
        (fact,) = w.said("node_test_proposed")
        assert w.job(fact.job_id).phase is Phase.SUCCEEDED
        assert (w.state.drains.get(A), w.state.node_tests.get(A).outcome) == (None, "passed")


async def test_a_new_process_proposes_no_second_test() -> None:
    async with World(health=policy(seconds="100")) as w:
        await suspect(w)
        await w.run(LOOK)
        await w.stop("reclamation")
        w.start_reclamation()
        await w.run(2 * LOOK)
        assert len(w.said("node_test_proposed")) == 1


async def test_a_test_that_fails_wherever_it_is_tried_is_told_once() -> None:
    async with World(("node-a", "node-b", "node-c", "node-d"), health=policy(exit_code="1")) as w:
        with capture_logs() as logs:
            for node in (A, B):
                await suspect(w, node)
                await w.run(2 * LOOK)
            await suspect(w, "node-c")
            await w.run(4 * LOOK)
        told = [each["nodes"] for each in logs if each["event"] == "node_test_broken"]
        assert (told, len(w.said("node_test_proposed"))) == ([[A, B]], 2)
        measured = w.metrics["reclamation"].registry.get_sample_value
        assert measured("tessera_node_test_broken") == 2
        body = w.state.config.body.model_copy(update={"health": policy(seconds="1")})
        await w.commit(config_proposed(body, w.state.config.version))
        await w.run(LOOK)
        assert measured("tessera_node_test_broken") == 0
