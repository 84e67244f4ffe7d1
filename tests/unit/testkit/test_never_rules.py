"""The checker's rule of refusals for good: what a refusal may rest on passes, and each of these lies is found."""

from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.facts import JobRefused, NodeSeen, Taint
from tessera_schemas.job import AffinityTerm, JobSpec, Operator, Toleration
from tessera_schemas.ledger import ConfigSet, FormatRaised, JobTurnedAway, NodeChanged
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, Chain, config_proposed, job_spec, node_seen, role

JOB = job_id(SHARD, "lab", "k1")
DAY_MS = 24 * 3600 * 1000
WORKER = "roles.worker"
GONE = NodeSeen(kind="node_seen", name="node-a", gone=True)


class Shard(Chain):
    """A chain of nodes that are seen, and of one refusal in the end."""

    def __init__(self, *nodes: NodeSeen) -> None:
        super().__init__()
        raised = FormatRaised(kind="format_raised", format=4)
        self.add(ConfigSet(kind="config_set", fact=0, version=1), raised, facts=(config_proposed(),))
        self.seen(*nodes)

    def seen(self, *nodes: NodeSeen, ms: int = 1000) -> None:
        records = [NodeChanged(kind="node_changed", fact=at) for at in range(len(nodes))]
        self.add(*records, facts=nodes, ms=ms)

    def refused(self, *specs: JobSpec | None, field: str = WORKER, ms: int = 10_000, **numbers: int) -> list[str]:
        """The violations after the refusal of the job, as which these were submitted."""
        why = Reason(code=Code.INADMISSIBLE, field=field, numbers=numbers)
        fact = JobRefused(kind="job_refused", tenant="lab", job_id=JOB, reasons=(why,))
        self.add(JobTurnedAway(kind="job_turned_away", fact=0, reasons=()), facts=(fact,), ms=ms)
        report = Report()
        check_rules(report, self.stored, {JOB: specs})
        assert report.examined["never"]
        return [violation.text for violation in report.violations if violation.invariant == "never"]


def asking(gpus: int = 8, replicas: int = 1, **more: Any) -> JobSpec:
    return job_spec(role(gpus=gpus, replicas=replicas, **more))


FINE: dict[str, tuple[JobSpec, dict[str, Any]]] = {
    "more GPUs than it ever had": (asking(gpus=9), {}),
    "more CPU": (asking(cpu_milli=65_000), {}),
    "more memory": (asking(memory_bytes=2**40), {}),
    "more pods than the nodes take": (asking(gpus=4, replicas=3), {}),
    "another model": (asking(gpu_models=("a100",)), {}),
    "a label that it never had": (asking(node_selector={"zone": "a"}), {}),
    "another value of a label": (asking(node_selector={"zone": "a"}), {"labels": {"zone": "b"}}),
    "a taint that it has had all the time": (asking(), {"taints": (Taint(key="own", effect="NoSchedule"),)}),
    "GPUs that are shared there": (asking(), {"device_profile": "shares"}),
    "another pool": (asking(), {"pool": "other"}),
}


@pytest.mark.parametrize(("spec", "node"), FINE.values(), ids=FINE)
def test_a_refusal_for_what_no_node_has_had_breaks_no_rule(spec: JobSpec, node: dict[str, Any]) -> None:
    assert Shard(node_seen("node-a", **node)).refused(spec) == []


HAD: dict[str, tuple[JobSpec, dict[str, Any], NodeSeen]] = {
    "all it asks for is there": (asking(), {}, node_seen()),
    "its GPUs were there, as while a plugin is away": (asking(), {}, node_seen(gpus=0)),
    "it had more CPU": (asking(cpu_milli=60_000), {}, node_seen(cpu_milli=8000)),
    "it had the label": (asking(node_selector={"zone": "a"}), {"labels": {"zone": "a"}}, node_seen()),
    "it had the model": (asking(gpu_models=("h100",)), {}, node_seen(gpu_model="")),
    "it was without the taint": (asking(), {}, node_seen(taints=(Taint(key="own", effect="NoSchedule"),))),
    "the taint tells a condition": (
        asking(),
        {"taints": (Taint(key="node.kubernetes.io/disk-pressure", effect="NoSchedule"),)},
        node_seen(gpus=4),
    ),
    "the taint is borne": (
        asking(tolerations=(Toleration(key="own"),)),
        {"taints": (Taint(key="own", effect="NoExecute"), Taint(key="nvidia.com/gpu", effect="NoSchedule"))},
        node_seen(gpus=4),
    ),
    "it is not ready": (asking(), {}, node_seen(ready=False)),
    "it is gone": (asking(), {}, GONE),
    "its label is there": (
        asking(affinity=(AffinityTerm(key="rack", operator=Operator.EXISTS),)),
        {"labels": {"rack": "r1"}},
        node_seen(),
    ),
}


@pytest.mark.parametrize(("spec", "before", "now"), HAD.values(), ids=HAD)
def test_a_refusal_for_what_a_node_has_had_is_found(spec: JobSpec, before: dict[str, Any], now: NodeSeen) -> None:
    shard = Shard(node_seen("node-a", **before))
    shard.seen(now, ms=10_000)
    (found,) = shard.refused(spec)
    assert found.endswith("1 pods of {'node-a': 1}")


def test_what_a_node_had_counts_for_seven_days() -> None:
    for ms, violations in ((7 * DAY_MS - 1, 1), (7 * DAY_MS, 0)):
        shard = Shard(node_seen("node-a"))
        shard.seen(node_seen("node-a", gpus=0))
        assert len(shard.refused(asking(), ms=ms)) == violations


def test_what_a_node_has_had_for_seconds_may_not_be_known_yet() -> None:
    for ms, violations in ((4_999, 0), (5_000, 1)):
        assert len(Shard(node_seen("node-a")).refused(asking(), ms=ms)) == violations


def test_all_pods_of_a_role_are_counted_over_all_nodes() -> None:
    shard = Shard(node_seen("node-a"), node_seen("node-b", gpus=4))
    assert len(shard.refused(asking(gpus=4, replicas=3))) == 1


def test_a_node_that_may_be_back_is_no_ground() -> None:
    shard = Shard(node_seen("node-a"))
    assert shard.refused(None, nodes_not_ready=1) == [f"job {JOB} is refused for good for ['nodes_not_ready']"]


NOT_TOLD: dict[str, tuple[tuple[JobSpec | None, ...], str]] = {
    "nothing that was submitted is known": ((), WORKER),
    "one of two specs was refused, and only the other could be held": ((asking(), asking(gpus=9)), WORKER),
    "a template was submitted, too": ((asking(), None), WORKER),
    "its pods cannot lie together": ((asking(),), "roles.worker.topology"),
    "no quota reaches the nodes": ((asking(),), "queue"),
    "it asks for a share": ((asking(gpus=0, gpu_milli=500),), WORKER),
    "it asks for labels that are not there": (
        (asking(affinity=(AffinityTerm(key="zone", operator=Operator.DOES_NOT_EXIST),)),),
        WORKER,
    ),
}


@pytest.mark.parametrize(("specs", "field"), NOT_TOLD.values(), ids=NOT_TOLD)
def test_what_is_not_certain_is_not_counted(specs: tuple[JobSpec | None, ...], field: str) -> None:
    assert Shard(node_seen("node-a")).refused(*specs, field=field) == []
