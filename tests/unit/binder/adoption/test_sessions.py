"""Notebooks that hubs and controllers made, as the jobs that they become: sessions, and of whom."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.marks import not_honoured
from tessera_schemas.cluster.labels import PREEMPTIBLE_ANNOTATION, SESSION_LABEL
from tests.unit.binder.adoption.adoption_builders import an_object, group, pod

Json = dict[str, Any]
OF_A_HUB = {
    "app": "jupyterhub",
    "component": "singleuser-server",
    "app.kubernetes.io/component": "singleuser-server",
    "hub.jupyter.org/username": "ana-40example-2ecom",
    "hub.jupyter.org/servername": "",
    "hub.jupyter.org/network-access-hub": "true",
}
OF_KUBEFLOW = {"statefulset": "book", "notebook-name": "book", "opendatahub.io/user": "bea"}


def adopted(labels: Json, annotations: Json, owner: Json | None = None) -> Adoption:
    its = pod("book-0", labels=labels, annotations=annotations, owner=owner)
    found = spec_of(group(its), [its], 1, owner)
    assert isinstance(found, Adoption), found
    assert not_honoured(its) == []
    return found


@pytest.mark.parametrize(
    ("labels", "annotations", "kind", "user"),
    [
        (OF_A_HUB, {"hub.jupyter.org/username": "ana"}, "notebook", "ana"),
        (OF_A_HUB, {"hub.jupyter.org/username": "ana@example.com"}, "notebook", "ana-40example-2ecom"),
        (OF_KUBEFLOW, {}, "notebook", "bea"),
        ({SESSION_LABEL: "workspace"}, {}, "workspace", ""),
    ],
    ids=["a hub's", "a hub's, of an address", "Kubeflow's", "by our own label"],
)
def test_a_pod_that_a_person_works_in_is_a_session_of_its_user(
    labels: Json, annotations: Json, kind: str, user: str
) -> None:
    spec = adopted(labels, annotations).spec
    assert spec.session is not None
    assert (spec.session.kind, spec.user) == (kind, user)


@pytest.mark.parametrize(
    "labels",
    [
        {"component": "singleuser-server"},
        {"hub.jupyter.org/username": "ana"},
        {"notebook-name": "book", "statefulset": "other"},
        {SESSION_LABEL: "party"},
    ],
    ids=["no user of a hub", "a hub's, and no server", "another set's", "no kind"],
)
def test_other_pods_are_no_sessions(labels: Json) -> None:
    spec = adopted(labels, {}).spec
    assert (spec.session, spec.user) == (None, "")


def test_a_notebook_is_not_stopped_for_others_unless_its_pod_says_so_though_its_controller_brings_it_back() -> None:
    owner = an_object("apps/v1", "StatefulSet", replicas=1)
    assert adopted({}, {}, owner).spec.preemptible
    assert not adopted(OF_KUBEFLOW, {}, owner).spec.preemptible
    assert adopted(OF_KUBEFLOW, {PREEMPTIBLE_ANNOTATION: "true"}, owner).spec.preemptible
