"""Where a pod may be placed: each condition of Kubernetes' scheduler is part of the role or refused by its field."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.workloads.marks import not_honoured
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import pod

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def role(**spec: Any) -> Role:
    found = role_of(pod(**spec))
    assert isinstance(found, Role), found
    return found


def refused(code: Code, field: str, **spec: Any) -> None:
    found = role_of(pod(**spec))
    assert isinstance(found, Reason), found
    assert (found.code, found.field) == (code, field)


def node_affinity(*terms: Json) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def test_a_node_selector_is_one() -> None:
    assert role(nodeSelector={"node-type": "my-precious"}).node_selector == {"node-type": "my-precious"}


def test_the_one_term_of_a_required_node_affinity_is_the_roles() -> None:
    conditions = [
        {"key": "zone", "operator": "In", "values": ["b", "a"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "rack", "operator": "NotIn", "values": ["r1"]},
    ]
    found = role(affinity=node_affinity({"matchExpressions": conditions}))
    said = {(term.key, term.operator.value, term.values) for term in found.affinity}
    assert said == {
        ("zone", "In", ("a", "b")),
        ("old", "DoesNotExist", ()),
        ("gpu", "Exists", ()),
        ("rack", "NotIn", ("r1",)),
    }


def test_the_order_in_which_conditions_and_tolerations_are_written_makes_no_difference() -> None:
    conditions = [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In", "values": ["1", "2"]}]
    tolerations = [{"key": "x", "operator": "Exists"}, {"key": "y", "value": "1", "effect": "NoSchedule"}]
    one = role(affinity=node_affinity({"matchExpressions": conditions}), tolerations=tolerations)
    turned = [{"key": "b", "operator": "In", "values": ["2", "1"]}, conditions[0], conditions[0]]
    assert role(affinity=node_affinity({"matchExpressions": turned}), tolerations=tolerations[::-1]) == one


def test_tolerations_of_a_role_leave_out_passing_troubles_and_preferences() -> None:
    found = role(
        tolerations=[
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "value": "ml"},
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300},
            {"key": "soft", "operator": "Exists", "effect": "PreferNoSchedule"},
        ]
    )
    assert {(t.key, t.value, t.effect) for t in found.tolerations} == {("gpu", "", "NoSchedule"), ("team", "ml", "")}


@pytest.mark.parametrize("said", [{}, {"operator": "Equal"}, {"operator": "Equal", "value": ""}, {"operator": ""}])
def test_a_toleration_of_taints_without_a_value_is_not_one_of_every_value(said: Json) -> None:
    (found,) = role(tolerations=[{"key": "a", "effect": "NoSchedule", **said}]).tolerations
    (every,) = role(tolerations=[{"key": "a", "effect": "NoSchedule", "operator": "Exists"}]).tolerations
    assert (found.every_value, every.every_value) == (False, True)


def test_conditions_on_numbers_are_those_of_the_pod() -> None:
    asked = [{"key": "b", "operator": "Gt", "values": ["1"]}, {"key": "a", "operator": "Lt", "values": ["40"]}]
    found = role(affinity=node_affinity({"matchExpressions": asked}))
    assert [(term.key, term.operator, term.values) for term in found.affinity] == [
        ("a", "Lt", ("40",)),
        ("b", "Gt", ("1",)),
    ]


def test_several_terms_are_alternatives_in_whatever_order_they_are_written() -> None:
    terms = [
        {"matchExpressions": [{"key": key, "operator": "Exists"}, {"key": "x", "operator": "Exists"}]} for key in "ab"
    ]
    found = role(affinity=node_affinity(*terms))
    assert [[term.key for term in terms] for terms in found.affinity_any] == [["a", "x"], ["b", "x"]]
    assert found.affinity == ()
    assert role(affinity=node_affinity(*reversed(terms))) == found


def preferring(*each: tuple[int, Json]) -> Json:
    preferred = [{"weight": weight, "preference": preference} for weight, preference in each]
    return {"nodeAffinity": {PREFERRED: preferred}}


def test_preferred_nodes_are_the_roles_in_whatever_order_they_are_written() -> None:
    east, west = ({"key": "zone", "operator": "In", "values": [zone]} for zone in ("east", "west"))
    both = {"matchExpressions": [{"key": "ssd", "operator": "Exists"}, east]}
    affinity = preferring((20, {"matchExpressions": [west]}), (80, both))
    found = role(affinity=affinity)
    assert [(each.weight, [term.key for term in each.terms]) for each in found.affinity_preferred] == [
        (20, ["zone"]),
        (80, ["ssd", "zone"]),
    ]
    turned = {"matchExpressions": both["matchExpressions"][::-1]}
    assert role(affinity=preferring((80, turned), (20, {"matchExpressions": [west]}))) == found
    assert not_honoured(pod(affinity=affinity)) == []


def test_a_preference_that_is_not_honoured_is_told_and_the_others_hold() -> None:
    exists: Json = {"matchExpressions": [EXISTS]}
    odd = [
        (50, exists | {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}),
        (50, {"matchExpressions": [EXISTS | {"operator": "Near"}]}),
        (101, exists),
    ]
    affinity = preferring(*odd, (7, exists), (50, {}))
    assert [each.weight for each in role(affinity=affinity).affinity_preferred] == [7]
    field = f"spec.affinity.nodeAffinity.{PREFERRED}"
    assert [each.partition(":")[0] for each in not_honoured(pod(affinity=affinity))] == [
        f"{field}[{index}]" for index in range(3)
    ]
    many = preferring(*[(1, exists)] * 33)
    assert len(role(affinity=many).affinity_preferred) == 32
    assert not_honoured(pod(affinity=many))[0].startswith(f"{field}[32]")


def test_preferences_are_passed_over() -> None:
    plain = role()
    assert role(affinity={"podAffinity": {PREFERRED: [{"weight": 1}]}}) == plain
    assert role(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]) == plain


ANTI, NEAR = (f"spec.affinity.{kind}.{REQUIRED}" for kind in ("podAntiAffinity", "podAffinity"))
WEB = {"matchLabels": {"app": "web"}}


def apart(selector: Json = WEB, **more: Any) -> Json:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector} | more
    return {"labels": {"app": "web", "tier": "front"}, "affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def groups(**spec: Any) -> list[str | None]:
    return [each.group for each in role(**spec).anti_affinity]


def test_pods_with_an_equal_term_of_anti_affinity_are_of_one_group() -> None:
    one = groups(**apart())
    assert len(one) == 1
    assert one[0] is not None
    assert groups(**apart(namespaces=["lab"])) == one
    assert groups(**apart({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]})) == one
    assert groups(**apart({"matchLabels": {"app": "web", "tier": "front"}})) != one
    assert groups(namespace="other", **apart()) != one
    assert role().anti_affinity == ()


def test_each_term_of_anti_affinity_is_a_group() -> None:
    terms = apart()["affinity"]["podAntiAffinity"][REQUIRED]
    terms += apart({"matchLabels": {"tier": "front"}})["affinity"]["podAntiAffinity"][REQUIRED]
    both, turned = ({"podAntiAffinity": {REQUIRED: each}} for each in (terms, [*reversed(terms), terms[0]]))
    labels = {"app": "web", "tier": "front"}
    assert len(groups(labels=labels, affinity=both)) == 2
    assert groups(labels=labels, affinity=both) == groups(labels=labels, affinity=turned)


def term(topology: str = "zone", **labels: str) -> Json:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}


def test_terms_about_other_pods_are_neighbours_of_the_role_in_one_order() -> None:
    wished = [{"weight": 5, "podAffinityTerm": term(app="logs")}]
    near = {REQUIRED: [term(app="cache"), term("kubernetes.io/hostname", app="cache")], PREFERRED: wished}
    found = role(
        labels={"app": "web", "tier": "front"},
        affinity={"podAffinity": near, "podAntiAffinity": {REQUIRED: [term(app="web")]}},
    ).neighbours
    assert found is not None
    assert found.labels == {"app": "web"}
    assert [(each.labels["app"], each.topology, each.weight) for each in found.near] == [
        ("cache", "kubernetes.io/hostname", None),
        ("cache", "zone", None),
        ("logs", "zone", 5),
    ]
    assert [(each.labels, each.topology) for each in found.apart_from] == [({"app": "web"}, "zone")]
    turned = {REQUIRED: [*reversed(near[REQUIRED]), near[REQUIRED][0]], PREFERRED: wished}
    again = role(
        labels={"tier": "front", "app": "web"},
        affinity={"podAffinity": turned, "podAntiAffinity": {REQUIRED: [term(app="web")]}},
    )
    assert again.neighbours == found


def test_pods_without_a_term_are_found_by_the_labels_that_they_name() -> None:
    named = role(labels={"app": "web", "tier": "front"}, annotations={"tessera.io/found-by": "tier, none"})
    assert named.neighbours is not None
    assert (named.neighbours.labels, named.neighbours.near) == ({"tier": "front"}, ())
    assert role(labels={"app": "web"}).neighbours is None
    assert role(**apart()).neighbours is None


TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
EXISTS = {"key": "a", "operator": "Exists"}
NOT_HONOURED: dict[str, tuple[str, Json]] = {
    "pod affinity to nothing": (f"{NEAR}[0].topologyKey", {"affinity": {"podAffinity": {REQUIRED: [{"a": 1}]}}}),
    "anti-affinity without domains": (f"{ANTI}[0].topologyKey", apart(topologyKey="")),
    "anti-affinity of other namespaces": (f"{ANTI}[0].namespaces", apart(namespaces=["lab", "other"])),
    "anti-affinity of any namespace": (f"{ANTI}[0].namespaceSelector", apart(namespaceSelector={})),
    "anti-affinity to pods of two values": (
        f"{ANTI}[0].labelSelector",
        apart({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "batch"]}]}),
    ),
    "anti-affinity to nobody": (
        f"{ANTI}[0].labelSelector",
        apart({"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}),
    ),
    "anti-affinity to all pods": (f"{ANTI}[0].labelSelector", apart({})),
    "anti-affinity by the presence of a label": (
        f"{ANTI}[0].labelSelector",
        apart({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
    ),
    "fields of the node": (
        f"{TERMS}[0].matchFields",
        {"affinity": node_affinity({"matchFields": [{"key": "metadata.name"}]})},
    ),
    "an unknown operator": (
        f"{TERMS}[0].matchExpressions[1].operator",
        {"affinity": node_affinity({"matchExpressions": [EXISTS, {"key": "b", "operator": "Ge", "values": ["1"]}]})},
    ),
    "spread": (
        "spec.topologySpreadConstraints[1]",
        {
            "topologySpreadConstraints": [
                {"whenUnsatisfiable": "ScheduleAnyway"},
                {"whenUnsatisfiable": "DoNotSchedule"},
            ]
        },
    ),
    "claims of devices that nobody looked up": ("spec.resourceClaims[0]", {"resourceClaims": [{"name": "gpu"}]}),
    "another gang": ("spec.workloadRef", {"workloadRef": {"name": "w"}}),
    "never preempting": ("spec.preemptionPolicy", {"preemptionPolicy": "Never"}),
    "ephemeral volumes": ("spec.volumes[1].ephemeral", {"volumes": [{"emptyDir": {}}, {"ephemeral": {}}]}),
    "ports of the node": ("spec.initContainers[0].ports", {"initContainers": [{"ports": [{"hostPort": 80}]}]}),
    "every taint": ("spec.tolerations[0].key", {"tolerations": [{"operator": "Exists"}]}),
    "taints above a number": (
        "spec.tolerations[0].operator",
        {"tolerations": [{"key": "a", "operator": "Gt", "value": "1"}]},
    ),
}


@pytest.mark.parametrize(("field", "spec"), NOT_HONOURED.values(), ids=NOT_HONOURED)
def test_what_cannot_be_honoured_is_refused_by_the_name_of_its_field(field: str, spec: Json) -> None:
    refused(Code.NOT_SUPPORTED_YET, field, **spec)


@pytest.mark.parametrize(
    ("field", "terms"), [(f"{TERMS}[1].matchExpressions", ({"matchExpressions": [EXISTS]}, {})), (TERMS, ())]
)
def test_a_term_that_fits_no_node_is_named(field: str, terms: tuple[Json, ...]) -> None:
    refused(Code.INVALID_FIELD, field, affinity=node_affinity(*terms))


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.resources", {"asks": {"nvidia.com/gpu": "2"}, "annotations": {"tessera.io/gpu-milli": "500"}}),
        ("spec.resources.gpus", {"asks": {"nvidia.com/gpu": "65"}}),
        ("spec.resources.mig_profile", {"asks": {"nvidia.com/mig-9g.1gb": "1"}}),
        ("spec.containers[0].resources.requests[memory]", {"asks": {"memory": "9Pi"}}),
        ("spec.resources.cpu_milli", {"asks": {"cpu": "8P"}}),
        (f"{TERMS}[0].matchExpressions", {"affinity": node_affinity({})}),
        (
            "spec.affinity.0.values",
            {"affinity": node_affinity({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x" * 64]}]})},
        ),
        ("spec.node_selector", {"nodeSelector": {f"key-{n}": "x" for n in range(33)}}),
    ],
    ids=[
        "share and whole",
        "too many GPUs",
        "no profile",
        "too much",
        "too much CPU",
        "empty term",
        "no value",
        "long",
    ],
)
def test_what_is_not_allowed_is_refused_where_the_contract_says_so(field: str, spec: Json) -> None:
    found = role_of(pod(**spec))
    assert isinstance(found, Reason), found
    assert found.code is Code.INVALID_FIELD
    assert found.field.startswith(field)
    assert found.sentence()
