"""Quantities, selectors, patches, node files and access of the simulated cluster."""

from pathlib import Path
from typing import Any

import pytest

from tessera.kernel.errors import StartupError
from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.access import Access, access_from_file
from tessera_local.cluster.api.patching import merged, patched, strategic
from tessera_local.cluster.api.routes import Call, call_of
from tessera_local.cluster.api.selectors import fields_of, parse_selector
from tessera_local.cluster.api.values import thousandths, units
from tessera_local.cluster.machines.nodes import NodesFileError, nodes_from_file


@pytest.mark.parametrize(
    ("text", "value"),
    [("123", 123), ("1Gi", 2**30), ("1.5Ki", 1536), ("1k", 1000), ("1e3", 1000), ("1E", 10**18), ("100m", 1), ("0", 0)],
)
def test_quantities_are_whole_units_rounded_up(text, value):
    assert units(text) == value


@pytest.mark.parametrize(("text", "value"), [("500m", 500), ("2", 2000), ("0.1", 100), ("1n", 1), (".5", 500)])
def test_cpu_is_in_thousandths(text, value):
    assert thousandths(text) == value


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("a=1", True),
        ("a==1", True),
        ("a=2", False),
        ("a", True),
        ("b", False),
        ("a=1, c", True),
        ("!a", False),
        ("!b", True),
    ],
)
def test_selectors_select_by_equality_and_presence(selector, selected):
    assert parse_selector(selector).matches({"a": "1", "c": ""}) is selected


@pytest.mark.parametrize("selector", ["!a=1", "a!", "a!=!1", "a in (1,2)"])
def test_selectors_that_are_not_simulated_are_refused_and_not_guessed(selector):
    with pytest.raises(ApiError):
        parse_selector(selector)


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ("spec.nodeName=a", True),
        ("spec.nodeName!=", True),
        ("spec.nodeName=", False),
        ("status.phase!=Failed, metadata.name=p", True),
        ("spec.schedulerName=tessera", False),
    ],
)
def test_selectors_of_fields_take_what_a_pod_has_not_for_empty(fields, selected):
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "a"}}
    assert parse_selector("", fields).matches({}, fields_of(pod)) is selected


def test_a_field_that_is_not_simulated_is_refused_and_not_guessed():
    with pytest.raises(ApiError):
        parse_selector("", "spec.priority=1")


def test_a_merge_patch_sets_removes_and_leaves_its_target_alone():
    target = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merged(target, {"a": {"b": None, "e": 4}, "d": [1]}) == {"a": {"c": 2, "e": 4}, "d": [1]}
    assert target == {"a": {"b": 1, "c": 2}, "d": 3}


def test_a_json_patch_applies_whole_or_not_at_all():
    target = {"m": {"a/b": 1, "list": [1, 2]}}
    steps = [{"op": "replace", "path": "/m/a~1b", "value": 2}, {"op": "remove", "path": "/m/list/0"}]
    assert patched(target, steps) == {"m": {"a/b": 2, "list": [2]}}
    with pytest.raises(ApiError) as caught:
        patched(target, [*steps, {"op": "test", "path": "/m/list", "value": [1, 2]}])
    assert caught.value.status == 422
    assert target == {"m": {"a/b": 1, "list": [1, 2]}}


def test_nodes_come_from_a_trace_in_csv(tmp_path: Path):
    file = tmp_path / "nodes.csv"
    file.write_text("sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\nnode-1,96000,1024,0,\n")
    first, second = nodes_from_file(file)
    assert first["metadata"]["labels"]["tessera.io/gpu-model"] == "P100"
    assert first["metadata"]["labels"]["tessera.io/pool"] == "default"
    assert first["status"]["allocatable"] == {
        "cpu": "64000m",
        "memory": "262144Mi",
        "pods": "1001",
        "nvidia.com/gpu": "2",
    }
    assert "tessera.io/gpu-model" not in second["metadata"]["labels"]


def test_nodes_come_from_yaml_with_counts(tmp_path: Path):
    file = tmp_path / "nodes.yaml"
    file.write_text("- {name: gpu, cpu: 64, memory: 256Gi, gpus: 8, gpu_model: H100, count: 2, pool: big}\n")
    nodes = nodes_from_file(file)
    assert [node["metadata"]["name"] for node in nodes] == ["gpu-0", "gpu-1"]
    assert nodes[0]["metadata"]["labels"]["tessera.io/pool"] == "big"


def test_a_node_may_have_further_devices_and_say_the_memory_of_its_gpus(tmp_path: Path):
    file = tmp_path / "nodes.yaml"
    file.write_text("- {name: a, cpu: 64, memory: 1Gi, gpus: 8, gpu_memory: 80Gi, devices: {rdma/hca: 2}}\n")
    (node,) = nodes_from_file(file)
    assert node["status"]["allocatable"]["rdma/hca"] == "2"
    assert node["metadata"]["labels"]["nvidia.com/gpu.memory"] == "81920"


def test_the_nodes_of_a_file_are_as_the_binder_reads_real_ones(tmp_path: Path):
    """By UUID no plugin offers the cards; cut GPUs are offered by their instances."""
    file = tmp_path / "nodes.yaml"
    size = "cpu: 1, memory: 1Gi"
    file.write_text(
        f"- {{name: a, {size}, gpus: 2, device_profile: visible-devices}}\n"
        f"- {{name: b, {size}, gpu_memory: 80Gi, device_profile: mig, mig: {{1g.10gb: 7, 3g.40gb: 2}}}}\n"
    )
    named, cut = nodes_from_file(file)
    assert len(named["metadata"]["annotations"]["tessera.io/gpu-uuids"].split(",")) == 2
    assert named["status"]["allocatable"]["nvidia.com/gpu"] == cut["status"]["allocatable"]["nvidia.com/gpu"] == "0"
    offered = {name: count for name, count in cut["status"]["allocatable"].items() if "mig-" in name}
    assert offered == {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("n.csv", "sn,cpu\na,1\n", "line 1: the columns"),
        ("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\nb,x,1,0,\n", "line 3: cpu_milli"),
        ("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1,1\n", "line 2: 5 fields"),
        ("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\na,1,1,0,\n", "line 3: name: 'a' is there twice"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi}\n- {name: b, cpu: lots, memory: 1Gi}\n", "line 2: cpu"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi, gpu: 1}\n", "line 1: gpu"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi, devices: {nvidia.com/gpu: 1}}\n", "line 1: devices"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi, gpu_memory: 1k}\n", "line 1: gpu_memory"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi, mig: {5g.5gb: 1}}\n", "line 1: mig"),
        ("n.yaml", "- {name: a, cpu: 1, memory: 1Gi, device_profile: hami}\n", "line 1: device_profile"),
        ("n.yaml", "name: a\n", "line 1: a list"),
        ("n.yaml", "- [\n", "not YAML"),
    ],
)
def test_a_malformed_node_is_refused_with_file_line_and_field(tmp_path: Path, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(NodesFileError) as caught:
        nodes_from_file(file)
    assert name in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "path", "call"),
    [
        ("GET", "/api/v1/pods", Call("list", "pods")),
        ("GET", "/api/v1/namespaces/a/pods", Call("list", "pods", "a")),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", Call("bind", "pods", "a", "p", "binding")),
        ("PATCH", "/api/v1/nodes/n/status", Call("patch", "nodes", "", "n", "status")),
    ],
)
def test_paths_say_what_is_asked(method, path, call):
    assert call_of(method, path) == call


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/configmaps", 404),
        ("GET", "/apis/v1/pods", 404),
        ("POST", "/api/v1/pods", 404),
        ("GET", "/api/v1/namespaces/a/nodes", 404),
        ("GET", "/api/v1/namespaces/a/pods/p/exec/x", 404),
        ("GET", "/api/v1/namespaces/a/pods/p/exec", 405),
        ("PUT", "/api/v1/namespaces/a/pods/p", 405),
    ],
)
def test_paths_that_are_not_served_are_refused(method, path, status):
    with pytest.raises(ApiError) as caught:
        call_of(method, path)
    assert caught.value.status == status


def test_tokens_give_identities_their_verbs(tmp_path: Path):
    file = tmp_path / "tokens.yaml"
    file.write_text("secret-1: {identity: reclamation, verbs: [list, watch, get]}\n")
    access = access_from_file(file)
    reclamation = access.identify("Bearer secret-1")
    reclamation.check(Call("list", "nodes"))
    for call in (Call("delete", "pods", "a", "p"), Call("create", "nodes")):
        with pytest.raises(ApiError) as caught:
            reclamation.check(call)
        assert caught.value.status == 403
    with pytest.raises(ApiError) as caught:
        access.identify("Bearer wrong")
    assert caught.value.status == 401


def test_without_tokens_everybody_may_do_everything():
    Access().identify("").check(Call("delete", "nodes", "", "n"))


def test_a_tokens_file_that_is_wrong_is_refused_without_showing_the_token(tmp_path: Path):
    file = tmp_path / "tokens.yaml"
    file.write_text("very-secret: {identity: x, verbs: [fly]}\n")
    with pytest.raises(StartupError) as caught:
        access_from_file(file)
    assert "very-secret" not in str(caught.value)


def test_a_strategic_patch_merges_lists_by_their_keys_joins_sets_and_replaces_the_rest() -> None:
    old = {
        "metadata": {"finalizers": ["a"]},
        "spec": {"containers": [{"name": "main", "image": "x"}, {"name": "side"}], "tolerations": [{"key": "t"}]},
    }
    patch = {
        "metadata": {"finalizers": ["a", "b"]},
        "spec": {"containers": [{"name": "main", "image": "y"}], "tolerations": [{"key": "u"}]},
    }
    assert strategic(old, patch) == {
        "metadata": {"finalizers": ["a", "b"]},
        "spec": {"containers": [{"name": "main", "image": "y"}, {"name": "side"}], "tolerations": [{"key": "u"}]},
    }
    assert old["spec"]["containers"][0]["image"] == "x"


@pytest.mark.parametrize(
    "patch", [{"spec": {"$patch": "replace"}}, {"spec": {"containers": [{"image": "y"}]}}], ids=str
)
def test_a_strategic_patch_that_is_not_understood_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        strategic({"spec": {"containers": [{"name": "main"}]}}, patch)
    assert refused.value.status == 422
