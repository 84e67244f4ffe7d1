"""Sessions as they are submitted: one pod, of which the server can be asked where idleness is to stop it."""

from typing import Any

import pytest

from tessera_schemas.config import Tenant
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.job import Session
from tessera_schemas.work.measured_use import SessionIngress
from tessera_schemas.work.pod_template import PodGrants
from tests.builders import config_body
from tests.unit.admission.admission_world import SPEC, World, changed


async def judged(
    session: dict[str, Any], default: Any = None, spec: Any = None, granted: bool = False, **role: Any
) -> JobAdmitted | JobRefused:
    body = config_body(**({"defaults": {"sessions": default}} if default else {}))
    lab = Tenant(name="lab", pod_grants=PodGrants(session_ingress=granted))
    world = await World.with_policy(body.model_copy(update={"tenants": (lab, *body.tenants[1:])}))
    asked = SPEC | {"session": session, "roles": [SPEC["roles"][0] | role]} | (spec or {})
    await world.submits(changed("spec", asked))
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted | JobRefused)
    return fact


async def test_a_session_of_one_pod_is_taken_as_it_says() -> None:
    fact = await judged({"kind": "notebook", "idle_seconds": 7200, "on_idle": "end"}, replicas=1)
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.session == Session(kind="notebook", idle_seconds=7200, on_idle="end")


@pytest.mark.parametrize(
    ("session", "replicas", "field", "why"),
    [
        ({"kind": "terminal"}, 2, "session", "one pod"),
        ({"kind": "workspace", "idle_seconds": 7200}, 1, "session.idle_seconds", "nobody can be asked"),
        ({"kind": "notebook", "idle_seconds": 600}, 1, "session.warning_seconds", "not less than idle_seconds"),
    ],
)
async def test_what_is_no_session_is_refused_by_name(
    session: dict[str, Any], replicas: int, field: str, why: str
) -> None:
    fact = await judged(session, replicas=replicas)
    assert isinstance(fact, JobRefused)
    (reason,) = fact.reasons
    assert (reason.code, reason.field, why in reason.detail) == ("InvalidField", field, True), reason


async def test_a_notebook_that_says_nothing_of_idleness_gets_what_the_configuration_has() -> None:
    default = {"idle_seconds": 3600, "warning_seconds": 300, "on_idle": "end"}
    fact = await judged({"kind": "notebook"}, default, replicas=1)
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.session == Session(kind="notebook", **default)
    fact = await judged({"kind": "notebook", "warning_seconds": 60}, default, replicas=1)
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.session == Session(kind="notebook", **default | {"warning_seconds": 60})
    for own in ({"kind": "notebook", "idle_seconds": 0}, {"kind": "workspace"}, {"kind": "terminal"}):
        fact = await judged(own, default, replicas=1)
        assert isinstance(fact, JobAdmitted)
        assert fact.spec.session == Session.model_validate(own), "its own word counts, and nobody can ask the others"


BEHIND = {"kind": "notebook", "ingress": True}
FORM = {"host": "{job}.nb.example.com"}
TEMPLATE = SPEC["roles"][0]["template"] | {"ports": [{"port": 8888}]}


async def test_a_session_behind_an_ingress_is_taken_where_there_is_one_and_its_tenant_may() -> None:
    default = {"ingress": FORM, "idle_seconds": 3600}
    fact = await judged(BEHIND, default, granted=True, replicas=1, template=TEMPLATE)
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.session == Session(kind="notebook", ingress=True, idle_seconds=3600)


@pytest.mark.parametrize(
    ("default", "granted", "more", "against"),
    [
        ({}, True, {}, [("NotSupportedYet", "defaults.sessions.ingress")]),
        ({"ingress": FORM}, False, {}, [("NotGranted", "pod_grants.session_ingress")]),
        ({"ingress": FORM}, True, {"launcher": "torchrun"}, [("InvalidField", "launcher: torchrun")]),
        ({"ingress": FORM}, True, {"session": BEHIND | {"kind": "terminal"}}, [("InvalidField", "template.ports")]),
        ({}, False, {}, [("NotGranted", "pod_grants.session_ingress"), ("NotSupportedYet", "an operator says")]),
    ],
    ids=["no ingress here", "not this tenant", "with a launcher", "a terminal", "all at once"],
)
async def test_who_may_not_have_an_ingress_is_told_each_reason(
    default: Any, granted: bool, more: Any, against: list[tuple[str, str]]
) -> None:
    fact = await judged(BEHIND, default, more, granted, replicas=1, template=TEMPLATE)
    assert isinstance(fact, JobRefused)
    codes = [code for code, _ in against]
    assert [(reason.code, reason.field) for reason in fact.reasons] == [(code, "session.ingress") for code in codes]
    assert all(why in reason.detail for reason, (_, why) in zip(fact.reasons, against, strict=True)), fact.reasons


async def test_a_session_without_a_port_has_nothing_that_an_ingress_could_lead_to() -> None:
    fact = await judged(BEHIND, {"ingress": FORM}, granted=True, replicas=1)
    assert isinstance(fact, JobRefused)
    assert [(reason.code, reason.field) for reason in fact.reasons] == [("InvalidField", "session.ingress")]


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"host": "{job}.example.com"}, "https://a.example.com/"),
        ({"host": "nb.example.com", "path": "/{tenant}/{job}/"}, "https://nb.example.com/lab/a/"),
        ({"host": "{job}-{tenant}.example.com", "path": "/lab", "tls": False}, "http://a-lab.example.com/lab/"),
    ],
)
def test_the_address_of_a_session_follows_from_its_job(said: dict[str, Any], url: str) -> None:
    assert SessionIngress.model_validate(said).url("a", "lab") == url


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"host": "nb.example.com"}, "say {job}"),
        ({"host": "{job}.nb_example.com"}, "no host name"),
        ({"host": "{job}.{user}.example.com"}, "no host name"),
        ({"host": "{job}.example.com", "path": "/{user}"}, "no other name"),
        ({"host": "{job}.example.com", "path": "lab"}, "pattern"),
    ],
)
def test_a_form_that_gives_no_addresses_of_their_own_is_no_form(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SessionIngress.model_validate(said)
