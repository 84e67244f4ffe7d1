"""Topology spread constraints of users' gangs: honoured where they count the gang's own pods, else refused by field."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.port import Group
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import batch_job, group, pod

Json = dict[str, Any]
FIELD = "spec.topologySpreadConstraints"
JOB_NAME = "batch.kubernetes.io/job-name"
OWN = {"labelSelector": {"matchLabels": {JOB_NAME: "train"}}}


def constraint(**more: Any) -> Json:
    return {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **more}


def adopted(*hard: Json, count: int = 3, labels: tuple[Json, ...] = ()) -> Adoption | Reason:
    """A Job's pods with these constraints; `labels` are further ones, pod by pod."""
    job = batch_job(parallelism=count, completions=count)
    made = [
        pod(
            f"train-{index}",
            owner=job,
            labels={JOB_NAME: "train", **(labels[index] if labels else {})},
            topologySpreadConstraints=list(hard),
        )
        for index in range(count)
    ]
    of: Group = group(made[0], job)
    return spec_of(of, made, count, job)


def spread(*hard: Json, **more: Any) -> tuple[str | None, int]:
    found = adopted(*hard, **more)
    assert isinstance(found, Adoption), found
    (role,) = found.spec.roles
    return role.spread, role.max_skew


def refused(*hard: Json, **more: Any) -> str:
    found = adopted(*hard, **more)
    assert isinstance(found, Reason), found
    assert found.code is Code.NOT_SUPPORTED_YET
    return found.field


SELECTORS = {
    "a label": {"labelSelector": {"matchLabels": {JOB_NAME: "train"}}},
    "an expression": {
        "labelSelector": {"matchExpressions": [{"key": JOB_NAME, "operator": "In", "values": ["train"]}]},
    },
    "a key of labels": {"labelSelector": {}, "matchLabelKeys": [JOB_NAME]},
}


@pytest.mark.parametrize("selector", SELECTORS.values(), ids=list(SELECTORS))
def test_a_constraint_over_the_gangs_own_pods_is_the_roles_spread(selector: Json) -> None:
    assert spread(constraint(**selector)) == ("zone", 1)
    assert spread(constraint(maxSkew=3, nodeTaintsPolicy="Honor", **selector)) == ("zone", 3)
    assert spread({"whenUnsatisfiable": "ScheduleAnyway"}, constraint(**selector)) == ("zone", 1)


NOT_HONOURED = {
    "a second one": ([constraint(**OWN), constraint(**OWN)], f"{FIELD}[1].whenUnsatisfiable"),
    "no label to spread over": ([constraint(topologyKey="", **OWN)], f"{FIELD}[0]"),
    "a least number of domains": ([constraint(minDomains=2, **OWN)], f"{FIELD}[0].minDomains"),
    "nodes that do not suit": ([constraint(nodeAffinityPolicy="Ignore", **OWN)], f"{FIELD}[0].nodeAffinityPolicy"),
    "tainted nodes": ([constraint(nodeTaintsPolicy="Ignore", **OWN)], f"{FIELD}[0].nodeTaintsPolicy"),
    "no selector": ([constraint()], f"{FIELD}[0].labelSelector"),
    "a label that others may have": (
        [constraint(labelSelector={"matchLabels": {"app": "train"}})],
        f"{FIELD}[0].labelSelector",
    ),
    "another's pods": ([constraint(labelSelector={"matchLabels": {JOB_NAME: "other"}})], f"{FIELD}[0].labelSelector"),
}


@pytest.mark.parametrize(("hard", "field"), NOT_HONOURED.values(), ids=list(NOT_HONOURED))
def test_what_would_count_other_pods_or_nodes_is_refused_by_its_field(hard: list[Json], field: str) -> None:
    assert refused(*hard) == field


def test_a_selector_of_some_of_the_pods_is_refused() -> None:
    only = {"labelSelector": {"matchLabels": {JOB_NAME: "train", "part": "a"}}}
    parts: tuple[Json, ...] = ({"part": "a"}, {"part": "a"}, {"part": "b"})
    assert refused(constraint(**only), labels=parts) == f"{FIELD}[0].labelSelector"


def test_a_pod_that_starts_by_itself_is_refused() -> None:
    alone = pod(topologySpreadConstraints=[constraint(**OWN)], labels={JOB_NAME: "train"})
    found = spec_of(group(alone), [alone], 1)
    assert isinstance(found, Reason)
    assert found.field == f"{FIELD}[0].labelSelector"
    assert not isinstance(role_of(alone), Reason)
