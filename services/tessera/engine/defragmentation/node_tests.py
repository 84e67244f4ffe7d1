"""
Test jobs for suspected nodes, as the configuration's `health.test` has them: which node is due, its job, and when that
starts.

A test runs on its node or nowhere, takes only what is free there, and stands in no line: nobody is evicted for it, and
no room is kept for it. Reclamation proposes a test, and the committer asks the same rules at the head. Pure.
"""

from collections.abc import Iterator, Mapping

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job
from tessera.domain.health.folding import find_suspects
from tessera.domain.health.node_tests import is_broken
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import shut_now
from tessera.engine.placement.capacity import is_shut
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.entry import NO_ARRAYS, entry_faults
from tessera.engine.queueing.readiness import is_free_to_start
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.base import job_id
from tessera_schemas.cluster.health import HealthTest
from tessera_schemas.facts import NodeTestProposed
from tessera_schemas.job import JobSpec, Resources, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import Retry, RetryRule, Whose

TESTS_MAX = 4
"""So many nodes of a shard are tested at a time."""
KEPT_EIGHTHS = 7
"""Of the GPUs' share of a node's CPU and memory a test asks for seven eighths, or for what is free of it."""
NAME = "node-test"


def due_tests(state: State, shard: str, ts: int) -> Iterator[NodeTestProposed]:
    """Tests to propose at ledger time `ts`, of nodes in the order in which they were suspected."""
    test = state.config.health_test
    for name in find_suspects(state) if test is not None else ():
        node = node_to_try(state, name)
        fact = None if node is None or test is None else _proposed(state, shard, test, node)
        if fact is not None and against_test(state, fact, ts) is None:
            yield fact


def against_test(
    state: State, fact: NodeTestProposed, ts: int, new_arrays: Mapping[str, str] = NO_ARRAYS
) -> Reason | None:
    """Why the test is not taken in at `ts`, besides arrays that the same message takes in; None if it is."""
    node, test, rows = node_to_try(state, fact.node), state.config.health_test, state.node_tests
    spec = None if node is None or test is None else _spec_of(state, test, node)
    if node is None or test is None or spec is None or fact.node not in find_suspects(state):
        return _refused(fact, "it is not suspected, or not open")
    # CPU and memory follow what is free: a pod that came or went meanwhile changes them, and nothing else may differ.
    if (fact.tenant, _without_amounts(fact.spec)) != (test.tenant, _without_amounts(spec)):
        return _refused(fact, "the configuration has another test")
    # Proposals are made from older states, and by several replicas: what bounds tests is counted here, at the head.
    last = rows.get(fact.node)
    if last is not None and (last.is_alive or last.ended_ts + test.again_seconds * 1000 > ts):
        return _refused(fact, "it was tested")
    if sum(row.is_alive for row in rows.values()) >= TESTS_MAX or is_broken(rows.values()):
        return _refused(fact, "enough nodes are tested")
    # On this node as if it were the whole pool: a test that starts elsewhere says nothing of the node.
    gang = state.tree.gang_of(fact.spec, fact.tenant, as_made=False, job_id=fact.job_id)
    if isinstance(FreeCapacity([node], scoring=find_scoring_policy(state, node.pool)).find(gang), Reason):
        return _refused(fact, "its GPUs are in use")
    # Asked of proposals, too: one that its tenant's limits refuse would be said, and refused, again and again.
    return next(iter(entry_faults(state, fact, new_arrays)), None)


def node_to_try(state: State, name: str) -> Node | None:
    """The suspected node, if something may start on it now."""
    node = state.nodes.get(name)
    if node is None or not node.ready or node.gone or is_shut(state, name) or name in shut_now(state, node.pool):
        return None
    return node


def waiting_test(state: State, node: str) -> Job | None:
    """The test job that may start on the node now."""
    row = state.node_tests.get(node)
    job = state.jobs.get(row.job_id) if row is not None and row.is_alive else None
    # Its tenant may have moved it: quota of another pool is none of this node's.
    is_there = job is not None and state.tree.pool(job.queue) == state.nodes.found((node,))[0].pool
    return job if is_there and job is not None and is_free_to_start(state, job) else None


def _proposed(state: State, shard: str, test: HealthTest, node: Node) -> NodeTestProposed | None:
    # With the version, since another configuration forgets who was tested: its first test would have the key of a job
    # that is known.
    known, last, spec = state.health.get(node.name), state.node_tests.get(node.name), _spec_of(state, test, node)
    if known is None or spec is None:
        return None
    # The same state gives the same key, so that a proposal that is said twice is one job.
    turn = (state.config.version, known.since_ts, 0 if last is None else last.ended_ts)
    key = f"{NAME}-{job_id(shard, node.name, '-'.join(map(str, turn)))}"
    return NodeTestProposed(
        kind="node_test_proposed",
        job_id=job_id(shard, test.tenant, key),
        tenant=test.tenant,
        key=key,
        spec=spec,
        notes=(f"tests node {node.name}, on which jobs failed",),
        node=node.name,
    )


def _spec_of(state: State, test: HealthTest, node: Node) -> JobSpec | None:
    """The test of a node; None for a node of another pool, or with fewer GPUs than the test wants."""
    # Another pool's nodes have other kinds of GPUs, mostly, for which the test was not made.
    gpus = test.gpus or node.gpus
    if not 0 < gpus <= node.gpus or state.tree.pool(test.queue) != node.pool:
        return None
    # All of the share would not fit beside the pods of DaemonSets, and no test would ever start.
    cpu, memory = (
        max(1, min(free, whole * gpus * KEPT_EIGHTHS // (8 * node.gpus)))
        for free, whole in ((node.cpu_free, node.cpu_milli), (node.memory_free, node.memory_bytes))
    )
    asked = Resources(cpu_milli=cpu, memory_bytes=memory, gpus=gpus, gpu_resource=node.gpu_resource)
    # Nobody is to wait for a test: whoever lacks its quota evicts it.
    classes = state.tree.priorities
    parties = (Whose.PROGRAM.value, Whose.NODE.value, Whose.SURROUNDINGS.value)
    return JobSpec(
        name=NAME,
        queue=test.queue,
        priority_class=min(classes, key=lambda name: (classes[name], name)),
        preemptible=True,
        roles=(Role(name="test", resources=asked, template=test.template),),
        time_limit_seconds=test.time_limit_seconds,
        ttl_seconds_after_finished=test.time_limit_seconds,
        # Tried once: a second try would be another test, with a time of its own.
        retry=Retry(max_attempts=1, rules=(RetryRule(causes=parties, action="fail"),)),
    )


def _without_amounts(spec: JobSpec) -> JobSpec:
    (role,) = spec.roles[:1]
    asked = role.resources.model_copy(update={"cpu_milli": 1, "memory_bytes": 1})
    return spec.model_copy(update={"roles": (role.model_copy(update={"resources": asked}), *spec.roles[1:])})


def _refused(fact: NodeTestProposed, why: str) -> Reason:
    return Reason(code=Code.PLAN_DOES_NOT_FIT, field=f"nodes.{fact.node}", detail=f"not tested: {why}")
