"""CPU and memory of pods that say none: their share, by GPUs or CPU, of the smallest node that could hold them."""

from typing import Any

import orjson
import pytest

from tessera.admission.decide.amounts import fill_amounts, find_pod_faults
from tessera.admission.decide.outcome import Origin, judge_tenant_command
from tessera.admission.decide.policy import AdmissionPolicy, Pools, tree_of
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera_schemas.config import Config, Limits, Tenant
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.job import JobSpec
from tessera_schemas.text.reading import read_tenant_command
from tests.builders import GIB, config_body, node_seen

TREE = tree_of(Config(version=1, body=config_body()))
NODES = (
    empty_node(node_seen("small", cpu_milli=64_000, memory_bytes=512 * GIB)),
    empty_node(node_seen("large", cpu_milli=192_000, memory_bytes=2048 * GIB, gpu_model="b200")),
    empty_node(node_seen("plain", gpus=0, gpu_model="")),
)


def spec(role: dict[str, Any] | None = None, **resources: Any) -> JobSpec:
    worker = {"name": "worker", "resources": resources, "template": {"image": "a"}, **(role or {})}
    return JobSpec.model_validate({"name": "train", "queue": "research", "roles": [worker]})


CASES = [
    ("a whole node", spec(gpus=8), 56_000, 448),
    ("a GPU of eight", spec(gpus=1), 7_000, 56),
    ("half a GPU", spec(gpu_milli=500), 3_000, 28),
    ("an instance", spec(mig_profile="1g.10gb"), 1_000, 14),
    ("of the model that it asks for", spec({"gpu_models": ["b200"]}, gpus=8), 168_000, 1792),
    ("what is said stays", spec(gpus=8, cpu_milli=4_000), 4_000, 448),
    ("within its limits", spec(gpus=8, memory_limit_bytes=64 * GIB), 56_000, 64),
    ("more GPUs than any node has", spec(gpus=16), 64_000, 256),
    ("a model that no node has", spec({"gpu_models": ["h200"]}, gpus=2), 8_000, 32),
    ("without GPUs", spec(), 1_000, 1),
    ("CPU alone", spec(cpu_milli=4_000), 4_000, 28),
    ("a quarter of a CPU", spec(cpu_milli=250), 250, 1),
    ("CPU that only a large node has", spec(cpu_milli=96_000), 96_000, 896),
    ("CPU that no node has", spec(cpu_milli=256_000), 256_000, 1),
]


@pytest.mark.parametrize(("asked", "cpu_milli", "gib"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_a_pod_does_not_say_is_its_share_of_a_node(asked: JobSpec, cpu_milli: int, gib: int) -> None:
    filled, notes = fill_amounts(asked, TREE, NODES)
    resources = filled.roles[0].resources
    assert (resources.cpu_milli, resources.memory_bytes) == (cpu_milli, gib * GIB)
    assert notes[0].startswith("worker: ")
    assert notes[0].endswith("say cpu and memory for others")


@pytest.mark.parametrize(
    ("asked", "cpu_milli", "gib"),
    [
        pytest.param(spec({"exclusive": True}, gpus=8, cpu_milli=4_000), 56_000, 448, id="less is raised"),
        pytest.param(spec({"exclusive": True}, gpus=8, cpu_milli=60_000), 60_000, 448, id="more stays"),
        pytest.param(spec({"exclusive": True}, cpu_milli=500, memory_bytes=GIB), 56_000, 448, id="without GPUs"),
        pytest.param(spec({"exclusive": True}, gpus=4), 16_000, 64, id="of no node that is known"),
    ],
)
def test_a_pod_that_has_a_node_to_itself_asks_for_no_less_than_the_share_of_one(
    asked: JobSpec, cpu_milli: int, gib: int
) -> None:
    filled, notes = fill_amounts(asked, TREE, NODES)
    resources = filled.roles[0].resources
    assert (resources.cpu_milli, resources.memory_bytes) == (cpu_milli, gib * GIB)
    assert len(notes) == 1
    assert fill_amounts(filled, TREE, NODES) == (filled, ())


OF_PODS = Limits.model_validate(
    {
        "pod_default": {"cpu_milli": 2_000},
        "pod_min": {"cpu_milli": 1_000, "memory_bytes": 2 * GIB},
        "pod_max": {"cpu_milli": 48_000, "memory_bytes": 256 * GIB, "gpus": 4},
    }
)


@pytest.mark.parametrize(
    ("asked", "cpu_milli", "gib"),
    [
        pytest.param(spec(), 2_000, 2, id="the default, and no less than the least"),
        pytest.param(spec(gpus=8), 2_000, 256, id="no more than the most"),
        pytest.param(spec(gpus=1), 2_000, 56, id="a share between them"),
        pytest.param(spec(cpu_milli=500, memory_bytes=GIB), 500, 1, id="what is said stays, and is refused"),
        pytest.param(spec(cpu_limit_milli=1_500), 1_500, 2, id="within its own limit"),
    ],
)
def test_a_tenant_says_what_pods_get_that_say_nothing(asked: JobSpec, cpu_milli: int, gib: int) -> None:
    resources = fill_amounts(asked, TREE, NODES, OF_PODS)[0].roles[0].resources
    assert (resources.cpu_milli, resources.memory_bytes) == (cpu_milli, gib * GIB)


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        pytest.param({"cpu_milli": 1_000, "memory_bytes": 2 * GIB}, [], id="the least"),
        pytest.param({"cpu_milli": 48_000, "memory_bytes": 256 * GIB, "gpus": 4}, [], id="the most"),
        pytest.param(
            {"cpu_milli": 999, "memory_bytes": 2 * GIB},
            [("roles[0].resources.cpu_milli", {"cpu_milli": 999, "pod_min_cpu_milli": 1_000})],
            id="less CPU",
        ),
        pytest.param(
            {"cpu_milli": 1_000, "memory_bytes": 257 * GIB, "gpus": 5},
            [
                ("roles[0].resources.memory_bytes", {"memory_bytes": 257 * GIB, "pod_max_memory_bytes": 256 * GIB}),
                ("roles[0].resources.gpus", {"gpu_milli": 5_000, "pod_max_gpu_milli": 4_000}),
            ],
            id="more memory and GPUs",
        ),
    ],
)
def test_a_pod_beyond_its_tenants_bounds_is_refused_with_both_numbers(asked: dict[str, int], wrong: list[Any]) -> None:
    found = list(find_pod_faults(spec(**asked), OF_PODS))
    assert [(reason.field, reason.numbers) for reason in found] == wrong
    body = config_body().model_copy(update={"tenants": (Tenant(name="lab", limits=OF_PODS),)})
    policy = AdmissionPolicy(tree=tree_of(Config(version=1, body=body)), pools=Pools(NODES))
    payload = {"kind": "submit_job", "v": 1, "key": "k", "spec": spec(**asked).model_dump(mode="json")}
    parsed = read_tenant_command(orjson.dumps(payload))
    fact = judge_tenant_command(parsed, Origin("main", "lab", 1), policy).fact
    refused = isinstance(fact, JobRefused)
    assert refused is bool(wrong)
    named = [reason.field for reason in fact.reasons if reason.code == "ExceedsJobLimit"] if refused else []
    assert named == [field for field, _ in wrong]


@pytest.mark.parametrize("default", [500, 49_000])
def test_bounds_of_pods_are_in_order(default: int) -> None:
    with pytest.raises(ValueError, match="pod_default"):
        Limits.model_validate({**OF_PODS.model_dump(), "pod_default": {"cpu_milli": default}})


def test_pods_that_are_made_already_ask_for_what_they_ask_for() -> None:
    asked = spec({"exclusive": True}, gpus=8, cpu_milli=4_000, memory_bytes=GIB)
    assert fill_amounts(asked, TREE, NODES, as_made=True) == (asked, ())


def test_a_pod_that_says_both_is_left_as_it_is() -> None:
    asked = spec(gpus=8, cpu_milli=1, memory_bytes=1)
    assert fill_amounts(asked, TREE, NODES) == (asked, ())


def submitted(asked: JobSpec, nodes: tuple[Node, ...]) -> tuple[JobAdmitted, tuple[str, ...]]:
    command = {
        "kind": "submit_job",
        "v": 1,
        "key": "k1",
        "tenant": "lab",
        "spec": asked.model_dump(mode="json", exclude_defaults=True),
    }
    outcome = judge_tenant_command(
        read_tenant_command(orjson.dumps(command)), Origin("main", "lab", 1), AdmissionPolicy(1, TREE, Pools(nodes))
    )
    assert isinstance(outcome.fact, JobAdmitted)
    return outcome.fact, outcome.answer.notes


def test_the_answer_says_it_and_the_same_submit_is_the_same_job_after_nodes_have_come() -> None:
    small, notes = submitted(spec(gpus=8), NODES[:1])
    assert notes == ("worker: 56 CPU and 448Gi, its share of a node with 8 GPUs; say cpu and memory for others",)
    large, _ = submitted(spec(gpus=8), NODES[1:])
    assert small.spec.roles[0].resources.cpu_milli < large.spec.roles[0].resources.cpu_milli
    assert small.digest() == large.digest() == spec(gpus=8).digest()
    said, notes = submitted(spec(gpus=8, cpu_milli=56_000, memory_bytes=448 * GIB), NODES)
    assert (notes, said.asked) == ((), "")
