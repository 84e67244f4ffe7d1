"""Jobs from templates at admission: one is judged like any other, and stays as it was made."""

from typing import Any

import pytest

from tessera_schemas.base import job_id
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.config import ConfigBody, Queue
from tessera_schemas.facts import CheckpointReported, ConfigProposed, JobAdmitted, JobRefused
from tessera_schemas.shard.records import DatasetTold
from tests.builders import SHARD, config_body
from tests.unit.admission.admission_world import SPEC, World, submit

PARAMETERS = [
    {"name": "lr", "type": "string", "default": "0.1"},
    {"name": "gpus", "type": "int", "default": 2, "min": 1, "max": 8},
]


def spec(**template: Any) -> dict[str, Any]:
    worker = dict(SPEC["roles"][0])
    worker["resources"] = {**worker["resources"], "gpus": "{gpus}"}
    worker["template"] = {"image": "tune:1", "args": ["--lr={lr}"], **template}
    return {**SPEC, "name": "tune", "roles": [worker]}


def template(**more: Any) -> dict[str, Any]:
    return {"name": "tune", "parameters": PARAMETERS, "spec": spec(), **more}


def config(*templates: dict[str, Any], **more: Any) -> ConfigBody:
    return config_body(templates=templates or (template(),), **more)


def ask(key: str = "k1", **more: Any) -> dict[str, Any]:
    return {"kind": "submit_template", "v": 1, "key": key, "template": "tune", **more}


async def admitted(world: World, command: dict[str, Any]) -> JobAdmitted:
    await world.batch(("lab", command), first=len(world.facts) + 1)
    fact = world.facts[-1]
    assert isinstance(fact, JobAdmitted), fact
    return fact


async def refused(world: World, command: dict[str, Any], tenant: str = "lab") -> list[tuple[str, str]]:
    await world.batch((tenant, command), first=len(world.facts) + 1)
    fact = world.facts[-1]
    assert isinstance(fact, JobRefused), fact
    return [(reason.code.value, reason.field) for reason in fact.reasons]


async def test_the_fact_holds_the_job_as_it_was_made_and_what_made_it() -> None:
    world = await World.with_policy(config())
    fact = await admitted(world, ask(parameters={"lr": "0.3", "gpus": 4}))
    assert fact.job_id == job_id(SHARD, "lab", "k1")
    assert fact.spec.roles[0].resources.gpus == 4
    assert fact.spec.roles[0].template.args == ("--lr=0.3",)
    assert fact.template is not None
    assert (fact.template.name, fact.template.config_version) == ("tune", 1)


async def test_a_retry_is_the_same_submit_although_the_template_has_changed_meanwhile() -> None:
    world = await World.with_policy(config())
    before = await admitted(world, ask(parameters={"gpus": "2"}))
    await world.views(config(template(spec=spec(image="tune:2"))))
    await world.policy.look_again()
    world.clock.now += 1
    await world.policy.look_again()
    after = await admitted(world, ask(key="k2", parameters={"gpus": 2}))
    assert after.spec != before.spec
    assert after.digest() == before.digest()


async def test_other_parameters_under_the_same_key_are_another_submit() -> None:
    world = await World.with_policy(config())
    first, second = await admitted(world, ask()), await admitted(world, ask("k2", parameters={"lr": "0.2"}))
    assert first.digest() != second.digest()
    assert (await admitted(world, ask("k3", name="mine"))).digest() != first.digest()


async def test_a_template_that_is_not_there_is_refused_by_name() -> None:
    world = await World.with_policy(config())
    assert await refused(world, ask(template="tun")) == [("NoSuchTemplate", "template")]


async def test_a_parameter_that_may_not_be_is_refused_by_name() -> None:
    world = await World.with_policy(config())
    assert await refused(world, ask(parameters={"gpus": 9})) == [("InvalidField", "parameters.gpus")]
    assert await refused(world, ask("k2", parameters={"epochs": 9})) == [("UnknownField", "parameters.epochs")]


async def test_a_parameter_of_no_kind_that_there_is_is_refused_before_anything_is_made() -> None:
    world = await World.with_policy(config())
    for value in (True, 1.5, None, ["x"], {"a": 1}):
        said = await refused(world, ask(parameters={"lr": value}))
        assert {code for code, _ in said} == {"InvalidField"}


async def test_what_the_template_says_itself_cannot_be_said() -> None:
    world = await World.with_policy(config())
    assert await refused(world, ask(queue="research")) == [("InvalidField", "queue")]
    fact = await admitted(world, ask("k2", name="mine"))
    assert fact.spec.name == "mine"


async def test_who_submits_a_template_is_the_user_of_its_job_and_another_user_is_another_submit() -> None:
    world = await World.with_policy(config())
    unnamed, named = await admitted(world, ask("k1")), await admitted(world, ask("k2", user="ana"))
    assert (unnamed.spec.user, named.spec.user) == ("", "ana")
    assert unnamed.template is not None
    assert named.template is not None
    assert unnamed.template.asked != named.template.asked


async def test_a_project_is_named_where_the_template_has_none_and_else_where_it_lets_one_be_said() -> None:
    world = await World.with_policy(config())
    fact = await admitted(world, ask("k1", project="vlm"))
    assert fact.spec.project == "vlm"
    assert fact.template is not None
    assert fact.template.asked != (await admitted(world, ask("k2"))).template.asked  # type: ignore[union-attr]
    own = template()
    own["spec"] = own["spec"] | {"project": "own"}
    world = await World.with_policy(config(own))
    assert await refused(world, ask("k1", project="vlm")) == [("InvalidField", "project")]
    assert (await admitted(world, ask("k2"))).spec.project == "own"
    world = await World.with_policy(config(own | {"overrides": ["project"]}))
    assert (await admitted(world, ask("k1", project="vlm"))).spec.project == "vlm"


async def test_what_the_template_lets_be_said_is_judged_like_any_job() -> None:
    body = config(template(overrides=["name", "queue"]))
    world = await World.with_policy(body)
    assert await refused(world, ask(queue="nowhere")) == [("NoSuchQueue", "queue")]


async def test_a_template_gives_no_tenant_a_queue_that_is_not_its_own() -> None:
    body = config_body(Queue(name="research", tenants=("other",)), templates=(template(),))
    world = await World.with_policy(body)
    assert await refused(world, ask()) == [("QueueNotAllowed", "queue")]


async def test_a_job_from_a_template_may_be_held_and_so_may_any_other() -> None:
    world = await World.with_policy(config())
    assert (await admitted(world, ask(held=True))).held
    assert (await admitted(world, submit("k2", held=True))).held
    assert not (await admitted(world, submit("k3"))).held


async def test_what_a_template_makes_is_no_larger_than_a_submit_may_be() -> None:
    long = {"name": "lr", "type": "string", "length_max": 1024}
    args = ["{lr}{lr}"] * 200
    world = await World.with_policy(
        config({**template(), "parameters": [long, PARAMETERS[1]], "spec": spec(args=args)})
    )
    assert await refused(world, ask(parameters={"lr": "x" * 1024})) == [("TooLarge", "")]


# -- what may be in a configuration


async def proposed(world: World, *templates: dict[str, Any]) -> list[str]:
    """What is said against a configuration with these templates."""
    body = config_body().model_dump(mode="json", exclude_defaults=True) | {"templates": templates}
    await world.controls({"kind": "apply_config", "v": 1, "expected_version": 0, "body": body})
    fact = world.facts[-1]
    if isinstance(fact, ConfigProposed):
        return []
    assert isinstance(fact, JobRefused)
    return [f"{reason.field}: {reason.detail}" for reason in fact.reasons]


async def test_a_sound_template_may_be_applied() -> None:
    assert await proposed(World(), template()) == []


WRONG = {
    "a field that the job has not": ({"spec": {**spec(), "hostNetwork": True}}, "hostNetwork"),
    "an image left out": ({"spec": spec(image=None)}, "image"),
    "a queue that is not there": ({"spec": {**spec(), "queue": "nowhere"}}, "no such queue: nowhere"),
    "a class that is not there": ({"spec": {**spec(), "priority_class": "most"}}, "no such class: most"),
    "steps without a command": ({"spec": {**spec(), "launcher": "steps"}}, "roles[0].template.command: "),
    "a variable that shows GPUs": ({"spec": spec(env={"NVIDIA_VISIBLE_DEVICES": "all"})}, "NVIDIA_VISIBLE_DEVICES"),
    "a bound that no job can have": (
        {"parameters": [PARAMETERS[0], {"name": "gpus", "type": "int", "default": 2, "min": 1, "max": 65}]},
        "parameters.gpus",
    ),
    "a placeholder that nothing declares": ({"spec": spec(args=["{lr} {x}"])}, "{x} is no parameter"),
    "two of one name": ({}, "is there twice"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
async def test_a_template_that_could_give_no_job_is_refused_when_it_is_applied(case: Any) -> None:
    changes, text = case
    wrong = await proposed(World(), *([template(**changes)] if changes else [template(), template()]))
    assert any(text in said for said in wrong), wrong


async def test_each_value_of_a_choice_is_tried() -> None:
    kinds = {"name": "kind", "type": "choice", "values": ["low", "nowhere"]}
    body = {**spec(), "priority_class": "{kind}"}
    wrong = await proposed(World(), template(parameters=[*PARAMETERS, kinds], spec=body))
    assert any("no such class: nowhere" in said for said in wrong), wrong


# -- checkpoints


async def test_a_report_of_a_checkpoint_is_a_fact_of_its_tenant() -> None:
    world = await World.with_policy()
    report = {"kind": "report_checkpoint", "v": 1, "job_id": "a" * 20, "path": "/data/7", "attempt": 2}
    await world.submits(report)
    said = CheckpointReported(kind="checkpoint_reported", job_id="a" * 20, tenant="lab", path="/data/7", attempt=2)
    assert world.facts == [said]


async def test_what_a_tenant_says_of_its_data_set_is_a_fact_of_that_tenant() -> None:
    world = await World.with_policy()
    places = {"size_bytes": 5, "nodes": ("node-a",), "gone": ("node-b",)}
    await world.submits({"kind": "tell_dataset", "v": 1, "dataset": "corpus", **places})
    told = DatasetTold(kind="dataset_told", tenant="lab", dataset="corpus", places=ToldPlaces(**places))
    assert world.facts == [told]


async def test_nobody_tells_of_another_tenants_data_set() -> None:
    world = await World.with_policy()
    said = {"kind": "tell_dataset", "v": 1, "dataset": "corpus", "gone": ["node-a"], "tenant": "ops"}
    assert await refused(world, said) == [("TenantMismatch", "tenant")]


@pytest.mark.parametrize("path", ["", "a\nb", "x" * 1025, 7], ids=["none", "two lines", "too long", "a number"])
async def test_a_path_that_could_not_be_handed_on_is_refused(path: Any) -> None:
    world = await World.with_policy()
    report = {"kind": "report_checkpoint", "v": 1, "job_id": "a" * 20, "path": path}
    assert await refused(world, report) == [("InvalidField", "path")]
