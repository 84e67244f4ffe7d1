"""A park whose nodes become suspected since jobs fail there, and test jobs of them."""

from typing import Any

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.defragmentation.node_tests import due_tests
from tessera_schemas.base import job_id
from tessera_schemas.cluster.health import HealthCause, HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.config import ConfigBody
from tessera_schemas.facts import DrainRequested, NodeTestProposed
from tessera_schemas.job import JobSpec, Template
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import World, ended, made, started

DAY_MS = 86_400_000
TEMPLATE = Template(image="registry.example/all-reduce:1", command=("all-reduce", "--check"))


def whole_node(user: str, **more: Any) -> JobSpec:
    return job_spec(role(gpus=8), user=user, **more)


def run_on(here: World, key: str, node: str, user: str = "", **more: Any) -> str:
    """
    A job that fills a node is brought to run on `node`, by draining the others for a moment; its run's id.

    Suspects take no such job as it is, and an operator's word would end what was counted of them.
    """
    others = [name for name, _ in here.state.nodes.items() if name != node and not causes(here.state, name)]
    drain(here, others)
    here.commit(admitted(key, whole_node(user or f"user-{key}", **more)))
    here.place()
    run = f"{job_id(SHARD, 'lab', key)}-1"
    assert [place.node for place in here.state.runs.get(run).placements] == [node]
    drain(here, others, undo=True)
    here.commit(made(run), started(run))
    return run


def drain(here: World, nodes: list[str], undo: bool = False) -> None:
    here.commit(*(DrainRequested(kind="drain_requested", node=node, undo=undo) for node in nodes))


def fail_on(here: World, key: str, node: str, **more: Any) -> None:
    """A job fails on the node, and is over."""
    run = run_on(here, key, node, **more)
    here.commit(ended(run))
    here.commit(run_absent(run))


def causes(state: State, node: str) -> list[HealthCause]:
    known = state.health.get(node)
    return [] if known is None else [each.ailment.cause for each in known.ailments]


def body_with_test(**test: Any) -> ConfigBody:
    asked = HealthTest(**{"tenant": "lab", "queue": "research", "template": TEMPLATE, **test})
    return config_body(health=HealthPolicy(reputation=ReputationPolicy(), test=asked))


def suspects(*names: str, nodes: int = 40, **test: Any) -> World:
    """A park in which two jobs failed on each of the suspects."""
    here = World(*(node_seen(f"node-{at:02}") for at in range(nodes)), body=body_with_test(**test))
    for node in names:
        for at in range(2):
            fail_on(here, f"{node}-{at}", node)
    assert [causes(here.state, node) for node in names] == [[HealthCause.SUSPECTED]] * len(names)
    return here


def due(here: World) -> list[NodeTestProposed]:
    return list(due_tests(here.state, SHARD, here.state.ts))


def job_of_test(here: World, node: str) -> Job:
    return here.state.jobs.get(here.state.node_tests.get(node).job_id)


def start_test(here: World, node: str) -> str:
    """A test of the node is taken in and runs; its run's id."""
    (fact,) = (fact for fact in due(here) if fact.node == node)
    here.commit(fact)
    run = job_of_test(here, node).run_id
    here.commit(made(run), started(run))
    return run


def end(here: World, run: str, reason: Reason | None) -> LedgerMessage:
    here.commit(ended(run, reason) if reason is not None else ended(run, reason=None))
    return here.commit(run_absent(run))


FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1}, detail="rank 3: wrong sum")


def fail_test(here: World, node: str, reason: Reason = FAILED) -> None:
    end(here, start_test(here, node), reason)


def pass_test(here: World, node: str) -> None:
    end(here, start_test(here, node), None)
