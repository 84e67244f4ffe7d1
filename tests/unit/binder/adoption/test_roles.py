"""Where a pod may be placed: each condition of Kubernetes' scheduler is part of the role or refused by its field."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.roles import role_of
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


def test_preferences_are_passed_over() -> None:
    wish = [{"weight": 1, "preference": {}}]
    plain = role()
    assert role(affinity={kind: {PREFERRED: wish} for kind in ("nodeAffinity", "podAffinity")}) == plain
    assert role(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]) == plain


TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
EXISTS = {"key": "a", "operator": "Exists"}
NOT_HONOURED: dict[str, tuple[str, Json]] = {
    "pod affinity": (f"spec.affinity.podAffinity.{REQUIRED}", {"affinity": {"podAffinity": {REQUIRED: [{"a": 1}]}}}),
    "pod anti-affinity": (
        f"spec.affinity.podAntiAffinity.{REQUIRED}",
        {"affinity": {"podAntiAffinity": {REQUIRED: [{"a": 1}]}}},
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
        "spec.topologySpreadConstraints[1].whenUnsatisfiable",
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
