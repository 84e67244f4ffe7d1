"""A built-in kind of resource is declared once, and everything that must know of it does: from the file to the pod."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.amounts import resources_of
from tessera.binder.decide.nodes import node_seen as node_of
from tessera.binder.decide.pods import pod_of
from tessera.binder.nodes.others import summed
from tessera.binder.nodes.uses import uses_of
from tessera.client.input.files import job_spec as spec_from_file
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node, role_need
from tessera.domain.state import State
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.fits import fits
from tessera.engine.placement.inadmissible import inadmissible
from tessera.projection.views import NODES, Views
from tessera.reclamation.lost_runs.decide import is_short
from tessera.testkit.checker.checked_nodes import CheckedNodes, amounts
from tessera_local.cluster.machines.capacity import AdmissionError, NodeUse, request_of
from tessera_schemas.cluster.resource_kinds import FURTHER, KINDS, CountedResources
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Reason
from tessera_schemas.text.units import format_memory
from tessera_schemas.views import NodeView
from tests.builders import GIB, job_spec, node_seen, placement, role
from tests.unit.binder.api_nodes import api_node
from tests.unit.binder.binder_builders import job, node, run

EVERY_FURTHER_KIND = pytest.mark.parametrize("field", FURTHER)
TWO_PODS = 2 * GIB


def requester(field: str, amount: int = GIB) -> Role:
    return role(gpus=0, **{field: amount})


def seen(field: str, amount: int) -> NodeSeen:
    return node_of(api_node(room={KINDS[field].resource: str(amount)} if amount else {}))


def having(field: str, amount: int, taken: int = 0) -> Node:
    found = empty_node(seen(field, amount))
    for rank in range(taken):
        found = found.taking(role_need(requester(field)).need, placement(rank, devices=()), 1)
    return found


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return found


def test_every_field_of_counted_resources_is_a_kind() -> None:
    assert set(KINDS) == set(CountedResources.model_fields)
    assert len({kind.resource for kind in KINDS.values()}) == len({kind.word for kind in KINDS.values()}) == len(KINDS)


@EVERY_FURTHER_KIND
def test_a_file_says_it_as_a_quantity(field: str) -> None:
    resources = {"cpu": 1, "memory": "1Gi", KINDS[field].word: "1Gi"}
    said = spec_from_file({"name": "train", "resources": resources}, "job.yaml")
    assert said["roles"][0]["resources"][field] == GIB


@EVERY_FURTHER_KIND
def test_a_pod_fits_where_enough_of_it_is_left(field: str) -> None:
    need = role_need(requester(field)).need
    assert fits(need, having(field, TWO_PODS, taken=1)) is None
    assert fits(need, having(field, TWO_PODS, taken=2)) is FitFailure.DEVICES
    assert fits(need, having(field, 0)) is FitFailure.DEVICES
    assert fits(role_need(role(gpus=0)).need, having(field, TWO_PODS, taken=2)) is None


@EVERY_FURTHER_KIND
def test_init_containers_count_by_kubernetes_rule(field: str) -> None:
    before = {"image": "a:1", "resources": {"cpu_milli": 1, "memory_bytes": 1, field: GIB}}
    template = {
        "image": "train:1",
        "init_containers": [before | {"name": "a", "sidecar": True}, before | {"name": "b"}],
    }
    beside = Role.model_validate(requester(field).model_dump(mode="json") | {"template": template})
    assert role_need(beside).need.devices == ((KINDS[field].resource, 2 * GIB),)


@EVERY_FURTHER_KIND
def test_a_refusal_names_it_with_numbers(field: str) -> None:
    name = KINDS[field].resource
    refused = inadmissible((role_need(requester(field, 4 * GIB)),), [having(field, TWO_PODS)])
    assert isinstance(refused, Reason)
    assert f"{format_memory(TWO_PODS)} of {name}" in refused.detail
    wanted, most = (refused.numbers[said.format(f"{name}_bytes")] for said in ("{}_wanted", "most_{}_free_on_a_node"))
    assert (wanted, most) == (4 * GIB, TWO_PODS)
    assert f"{name} wanted 4Gi" in refused.sentence()


@EVERY_FURTHER_KIND
def test_a_pod_asks_for_it_and_its_limit_is_its_request(field: str) -> None:
    spec = job_spec(requester(field))
    resources = container_of(pod_of(job(spec), run(spec), 0, spec, 7, node()))
    assert resources["requests"][KINDS[field].resource] == resources["limits"][KINDS[field].resource] == str(GIB)
    assert KINDS[field].resource not in container_of(pod_of(job(), run(), 0, job_spec(), 7, node()))["requests"]


@EVERY_FURTHER_KIND
def test_a_pod_made_by_others_is_taken_in_with_it(field: str) -> None:
    asked = {"containers": [{"resources": {"requests": {"cpu": "1", KINDS[field].resource: "1Gi"}}}]}
    found = resources_of(asked, {})
    assert isinstance(found, dict)
    assert found[field] == GIB


@EVERY_FURTHER_KIND
def test_what_pods_of_others_take_of_a_node_is_not_free(field: str) -> None:
    name = KINDS[field].resource
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"resources": {"requests": {name: "1Gi"}}}]}}
    there = node_of(api_node(room={name: str(TWO_PODS)}), summed([uses_of(pod)]))
    assert dict(empty_node(there).devices_free)[name] == GIB


@EVERY_FURTHER_KIND
def test_a_node_that_has_none_is_the_node_that_it_was_before_the_kind_was_known(field: str) -> None:
    assert node_of(api_node(room={KINDS[field].resource: "0"})) == node_of(api_node())


@EVERY_FURTHER_KIND
def test_a_node_that_has_less_of_it_than_is_held_loses_no_run_for_that(field: str) -> None:
    spec = job_spec(requester(field))
    assert not is_short(having(field, 0), [run(spec, places=(placement(devices=()),))])


@EVERY_FURTHER_KIND
def test_the_view_of_a_node_shows_what_is_there_and_what_is_free(field: str) -> None:
    state = State()
    state.nodes.put("node-a", having(field, TWO_PODS))
    value = Views(state).value((NODES, "node-a"))
    assert value is not None
    shown = NodeView.from_bytes(value)
    assert dict(shown.devices)[KINDS[field].resource] == dict(shown.devices_free)[KINDS[field].resource] == TWO_PODS


@EVERY_FURTHER_KIND
def test_the_checker_counts_it_by_itself(field: str) -> None:
    checked_nodes = CheckedNodes()
    checked_nodes.nodes["node-a"] = node_seen("node-a", devices={KINDS[field].resource: GIB})
    held = amounts([requester(field)], [placement(devices=())])
    assert checked_nodes.take(checked_nodes.held, held) == []
    assert checked_nodes.take(checked_nodes.held, held) == [("node-a", f"device/{KINDS[field].resource}")]


@EVERY_FURTHER_KIND
def test_the_simulated_kubelet_refuses_a_pod_for_which_there_is_too_little(field: str) -> None:
    spec: JobSpec = job_spec(requester(field))
    use = NodeUse()
    use.resize(api_node(room={KINDS[field].resource: str(GIB - 1)}))
    with pytest.raises(AdmissionError, match=KINDS[field].resource):
        use.take(request_of(pod_of(job(spec), run(spec), 0, spec, 7, node())))
