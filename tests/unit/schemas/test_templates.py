"""Job templates: what a template may be, and what parameters make of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tessera_schemas.base import INT_MAX
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Reason
from tessera_schemas.work.pod_template import literally
from tessera_schemas.work.templates import JobTemplate, Parameter, Value

LR = {"name": "lr", "type": "string", "default": "0.1"}
GPUS = {"name": "gpus", "type": "int", "default": 2, "min": 1, "max": 8}
MODEL = {"name": "model", "type": "choice", "default": "small", "values": ["small", "large"]}


def spec(**role: Any) -> dict[str, Any]:
    template = {"image": "train:1", "args": ["--lr={lr}"], **role.pop("template", {})}
    resources = {"cpu_milli": 1000, "memory_bytes": 2**30, **role.pop("resources", {})}
    worker = {"name": "worker", "resources": resources, "template": template, **role}
    return {"name": "train", "queue": "research", "roles": [worker]}


def template(*parameters: dict[str, Any], of: dict[str, Any] | None = None, **more: Any) -> JobTemplate:
    body = {"name": "train", "parameters": parameters or [LR], "spec": of or spec(), **more}
    return JobTemplate.model_validate(body)


def made(from_: JobTemplate, given_: dict[str, Value] | None = None, **overrides: str) -> JobSpec:
    values = from_.read(given_ or {})
    assert isinstance(values, dict), values
    job = from_.expanded(values, overrides)
    assert isinstance(job, JobSpec), job
    return job


def against(from_: JobTemplate, **given_: Value) -> list[tuple[str, str]]:
    read = from_.read(given_)
    assert isinstance(read, tuple), read
    return [(reason.code.value, reason.field) for reason in read]


def test_a_value_takes_the_place_of_its_name_in_a_string() -> None:
    assert made(template(), {"lr": "0.3"}).roles[0].template.args == ("--lr=0.3",)


def test_a_default_stands_for_what_is_not_said() -> None:
    assert made(template()).roles[0].template.args == ("--lr=0.1",)


def test_an_int_alone_in_a_field_is_the_number_and_in_text_its_digits() -> None:
    job = spec(replicas="{gpus}", resources={"gpus": "{gpus}"}, template={"args": ["{gpus}", "{lr}"]})
    worker = made(template(LR, GPUS, of=job), {"gpus": 3}).roles[0]
    assert (worker.replicas, worker.resources.gpus, worker.template.args[0]) == (3, 3, "3")


def test_a_number_may_be_sent_in_digits_as_a_command_line_has_it() -> None:
    job = template(LR, GPUS, of=spec(replicas="{gpus}"))
    assert made(job, {"gpus": "4"}) == made(job, {"gpus": 4})


def test_what_looks_like_a_placeholder_in_a_value_is_not_read_again() -> None:
    job = template(LR, {**LR, "name": "more"}, of=spec(template={"args": ["{lr}", "{more}"]}))
    assert made(job, {"lr": "{more}", "more": "x"}).roles[0].template.args == ("{more}", "x")


def test_what_kubernetes_would_read_in_a_users_words_reaches_the_program_as_it_was_said() -> None:
    job = template(LR, of=spec(template={"args": ["{lr}", "$(TESSERA_RANK)"], "env": {"LR": "$$ {lr}"}}))
    container = made(job, {"lr": "$(HOME) 5$$"}).roles[0].template
    assert (container.args, container.env) == (("$$(HOME) 5$$$$", "$(TESSERA_RANK)"), {"LR": "$$ $$(HOME) 5$$$$"})


def test_braces_around_anything_but_a_name_are_text() -> None:
    text = '{"a": {"B": 1}} ${HOME} {} {Lr}'
    assert made(template(of=spec(template={"args": [text, "{lr}"]}))).roles[0].template.args[0] == text


def test_name_and_queue_may_be_said_beside_the_parameters() -> None:
    job = made(template(), name="mine", queue="prod")
    assert (job.name, job.queue) == ("mine", "prod")


REFUSED = {
    "an unknown parameter": ({"epochs": 3}, ("UnknownField", "parameters.epochs")),
    "a number above its most": ({"gpus": 9}, ("InvalidField", "parameters.gpus")),
    "a number below its least": ({"gpus": 0}, ("InvalidField", "parameters.gpus")),
    "words for a number": ({"gpus": "two"}, ("InvalidField", "parameters.gpus")),
    "a fraction for a number": ({"gpus": "1.5"}, ("InvalidField", "parameters.gpus")),
    "more digits than any number has": ({"gpus": "9" * 400}, ("InvalidField", "parameters.gpus")),
    "what is no choice": ({"model": "huge"}, ("InvalidField", "parameters.model")),
    "text that is too long": ({"lr": "x" * 257}, ("InvalidField", "parameters.lr")),
    "a line end": ({"lr": "0.1\nrm -rf /"}, ("InvalidField", "parameters.lr")),
    "a NUL": ({"lr": "0.1\x00"}, ("InvalidField", "parameters.lr")),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_parameter(case: Any) -> None:
    given_, expected = case
    job = spec(replicas="{gpus}", template={"args": ["{lr}", "{model}"]})
    assert against(template(LR, GPUS, MODEL, of=job), **given_) == [expected]


def test_what_has_no_default_has_to_be_said() -> None:
    required = {"name": "lr", "type": "string"}
    assert against(template(required)) == [("MissingField", "parameters.lr")]


def test_all_mistakes_are_told_at_once() -> None:
    job = template(LR, GPUS, of=spec(replicas="{gpus}"))
    assert against(job, gpus=99, lr="\n", more=1) == [
        ("UnknownField", "parameters.more"),
        ("InvalidField", "parameters.lr"),
        ("InvalidField", "parameters.gpus"),
    ]


def test_a_job_that_cannot_be_is_told_by_the_parameter_that_made_it_so() -> None:
    wide = {"name": "gpus", "type": "int", "default": 1}
    job = template(LR, wide, of=spec(resources={"gpus": "{gpus}"}))
    told = job.expanded({"lr": "x", "gpus": 65}, {})
    assert isinstance(told, tuple)
    assert [reason.field for reason in told] == ["parameters.gpus"]
    assert "roles[0].resources.gpus" in told[0].detail


BAD = {
    "a placeholder that nothing declares": ([LR], spec(template={"args": ["{lr} {epochs}"]}), "{epochs}"),
    "a parameter that nothing uses": ([LR, GPUS], spec(), "parameters.gpus: nothing uses it"),
    "two parameters of one name": ([LR, LR], spec(), "parameters.lr: is there twice"),
    "free text in an image": ([LR], spec(template={"image": "train:{lr}"}), "only a choice may name an image"),
    "a number in an image": (
        [LR, GPUS],
        spec(template={"image": "train:{gpus}"}),
        "only a choice may name an image",
    ),
    "free text in a command": ([LR], spec(template={"command": ["sh", "-c", "{lr}"]}), "goes into args and env"),
    "free text in the queue": ([LR], {**spec(), "queue": "{lr}"}, "goes into args and env"),
    "a variable's name": ([LR], spec(template={"env": {"{lr}": "x"}}), "a key holds no parameter"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_a_template_in_which_a_user_would_have_a_say_where_none_is_meant_is_refused(case: Any) -> None:
    parameters, of, text = case
    with pytest.raises(ValidationError) as caught:
        template(*parameters, of=of)
    assert text in str(caught.value)


def test_a_choice_may_name_an_image_and_a_volume() -> None:
    volume = {"kind": "claim", "name": "corpus-{model}", "mount_path": "/data", "read_only": True}
    job = template(LR, MODEL, of=spec(template={"image": "train:{model}", "volumes": [volume]}))
    container = made(job, {"model": "large"}).roles[0].template
    assert (container.image, container.volumes[0].name) == ("train:large", "corpus-large")


UNSOUND = {
    "a choice without values": {"name": "x", "type": "choice"},
    "values of what is no choice": {"name": "x", "type": "string", "values": ["a"]},
    "bounds of what is no number": {"name": "x", "type": "string", "min": 1},
    "a least above the most": {"name": "x", "type": "int", "min": 2, "max": 1},
    "a default that may not be": {"name": "x", "type": "int", "default": 9, "max": 8},
    "a default that is no choice": {"name": "x", "type": "choice", "values": ["a"], "default": "b"},
}


@pytest.mark.parametrize("parameter", UNSOUND.values(), ids=UNSOUND)
def test_a_parameter_that_contradicts_itself_is_refused(parameter: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Parameter.model_validate(parameter)


@given(st.text(max_size=40))
def test_whatever_a_user_says_only_the_places_of_its_parameter_change(text: str) -> None:
    job = template(of=spec(template={"args": ["--lr={lr}", "fixed"], "env": {"LR": "{lr}"}}))
    values = job.read({"lr": text})
    if isinstance(values, tuple):
        assert not text.isprintable()
        return
    container = made(job, {"lr": text}).roles[0].template
    assert (container.args, container.env) == ((f"--lr={literally(text)}", "fixed"), {"LR": literally(text)})
    assert container.image == "train:1"


@given(st.integers())
def test_a_number_is_taken_exactly_within_its_bounds(number: int) -> None:
    read = Parameter.model_validate(GPUS).read(number)
    assert read == number if 1 <= number <= 8 else isinstance(read, Reason)


def test_a_number_without_bounds_stays_one_that_every_reader_keeps_exact() -> None:
    free = Parameter(name="n", type="int")
    assert free.read(INT_MAX) == INT_MAX
    assert isinstance(free.read(str(INT_MAX + 1)), Reason)
