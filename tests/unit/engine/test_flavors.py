"""Quotas of a flavor beside quotas of any: every node that a quota counts can be reached, and no other."""

from typing import Any

from tessera.admission.decide.policy import AdmissionPolicy, Pools
from tessera.admission.decide.verdict import find_job_faults
from tessera.client.ledger.replay import verify
from tessera.domain.devices.empty_nodes import empty_node
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.commands import SubmitJob
from tessera_schemas.config import Flavor, Queue, Quota
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed

FLAVORS = (Flavor(name="a100", gpu_models=("a100",)), Flavor(name="h100", gpu_models=("h100",)))
ANY, FEW = Quota(resource="gpu_milli", nominal=200_000), Quota(resource="gpu_milli", nominal=4000, flavor="a100")


def nodes() -> list[NodeSeen]:
    racks = [node_seen(f"h{n}", 8, gpu_model="h100", labels={"rack": f"r{n % 3}"}) for n in range(6)]
    hca = node_seen("hca", 8, gpu_model="h100", devices={"rdma/hca": 8}, labels={"rack": "r3"})
    return [*racks, hca, node_seen("t4", 4, gpu_model="t4"), node_seen("a", 8, gpu_model="a100", labels={"rack": "r4"})]


def shard(*quotas: Quota, **more: Any) -> Committed:
    body = config_body(Queue(name="research", quotas=quotas or (ANY, FEW), **more), flavors=FLAVORS)
    return Committed().begin(*nodes(), body=body)


def placed(ledger: Committed, *roles: Any) -> list[str]:
    """The nodes that the job starts on; empty when it waits."""
    ledger.commit(admitted(f"k{ledger.state.n}", job_spec(*roles)))
    made = ledger.commit(orders=(ledger.line(),)).records
    return sorted(place.node for record in made if record.kind == "allocated" for place in record.placements)


def refused(ledger: Committed, *roles: Any) -> list[Reason]:
    policy = AdmissionPolicy(1, ledger.state.tree, Pools(empty_node(node) for node in nodes()))
    return find_job_faults(
        SubmitJob(kind="submit_job", v=1, tenant="lab", key="k", spec=job_spec(*roles)), "lab", policy
    )


def test_a_quota_of_one_flavor_leaves_all_other_nodes_to_the_quota_of_any() -> None:
    for asked in (role(gpu_models=("t4",)), role(devices={"rdma/hca": 1}), role(replicas=6, gpus=8)):
        assert refused(shard(), asked) == []
        assert placed(shard(), asked) != []


def test_the_quota_of_a_flavor_holds_for_its_nodes_and_for_no_others() -> None:
    ledger = shard()
    assert placed(ledger, role(gpus=4, gpu_models=("a100",))) == ["a"]
    assert placed(ledger, role(gpus=1, gpu_models=("a100",))) == []
    assert len(placed(ledger, role(replicas=7, gpus=8))) == 7
    report = Report()
    check_rules(report, ledger.stored)
    assert (report.violations, verify(ledger.stored).findings) == ([], [])


def test_pods_that_are_spread_use_all_nodes_that_the_flavor_has() -> None:
    there = placed(shard(), role(replicas=4, gpus=1, spread="rack"))
    assert len(there) == 4
    assert len({name for name in there if name != "a"}) == 4


def test_a_queues_own_quotas_say_in_which_order_flavors_are_tried() -> None:
    assert placed(shard(FEW, ANY), role(gpus=1)) == ["a"]
    assert placed(shard(ANY, FEW), role(gpus=1)) != ["a"]


def test_a_job_that_no_quota_reaches_is_refused_with_the_flavors_that_were_tried() -> None:
    for quotas in ((FEW,), (FEW, Quota(resource="gpu_milli", nominal=4000, flavor="h100"))):
        (reason,) = refused(shard(*quotas), role(gpu_models=("t4",)))
        assert reason.code is Code.INADMISSIBLE
        assert "no quota of queue research reaches them" in reason.detail
        assert "a100: " in reason.detail
    (reason,) = refused(shard(FEW), role(gpu_models=("v100",)))
    assert reason.field == "roles.worker", "no node of the pool could hold it, whatever the quotas"


def test_a_flavor_without_nodes_holds_nothing_while_the_pool_has_others() -> None:
    none = Quota(resource="gpu_milli", nominal=4000, flavor="l4")
    body = config_body(Queue(name="research", quotas=(none,)), flavors=(Flavor(name="l4", gpu_models=("l4",)),))
    (reason,) = refused(Committed().begin(*nodes(), body=body), role(gpus=1))
    assert "there is no such node" in reason.detail


def test_a_strict_queue_is_not_blocked_by_what_a_quota_of_another_flavor_counts() -> None:
    ledger = shard(queueing_strategy="strict_fifo")
    assert placed(ledger, role(gpu_models=("t4",))) == ["t4"]
    assert placed(ledger, role(gpus=1)) != []


def test_explain_says_that_no_quota_reaches_the_nodes_that_could_hold_a_job() -> None:
    ledger = shard()
    ledger.commit(admitted("k1", job_spec(role(gpu_models=("t4",), gpus=4))))
    narrower = config_body(Queue(name="research", quotas=(FEW,)), flavors=FLAVORS)
    ledger.commit(config_proposed(narrower, ledger.state.config.version))
    ledger.commit(orders=(ledger.line(),))
    (job,) = ledger.state.jobs.values()
    told = explain(ledger.state, job.job_id, ledger.ts)
    assert told is not None
    assert any("no quota of queue research reaches them" in text for text in told.sentences)
