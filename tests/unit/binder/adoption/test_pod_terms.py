"""Terms of a gang's pods about pods: those of others are the role's neighbours, its own are refused by the field."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import batch_job, group, pod

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def adopted(affinity: Json, count: int = 2) -> Adoption | Reason:
    job = batch_job(parallelism=count, completions=count)
    made = [pod(f"train-{at}", owner=job, labels={"app": "train"}, affinity=affinity) for at in range(count)]
    return spec_of(group(made[0], job), made, count, job)


def term(app: str) -> Json:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_a_condition_about_the_gang_itself_is_refused_and_of_one_pod_it_is_about_others_like_it(kind: str) -> None:
    refused = adopted({kind: {REQUIRED: [term("cache"), term("train")]}})
    assert isinstance(refused, Reason), refused
    assert (refused.code, refused.field) == (
        Code.NOT_SUPPORTED_YET,
        f"spec.affinity.{kind}.{REQUIRED}[1].labelSelector",
    )
    assert isinstance(adopted({kind: {REQUIRED: [term("train")]}}, count=1), Adoption)


def test_a_preference_about_the_gang_itself_is_one_about_others() -> None:
    wish = {"weight": 3, "podAffinityTerm": term("train")}
    found = adopted({"podAntiAffinity": {PREFERRED: [wish]}, "podAffinity": {REQUIRED: [term("cache")]}})
    assert isinstance(found, Adoption), found
    said = found.spec.roles[0].neighbours
    assert said is not None
    assert said.labels == {"app": "train"}
    assert ([each.weight for each in said.apart_from], [each.labels for each in said.near]) == ([3], [{"app": "cache"}])
