"""Fields that the API shares with the contract are the contract's: their sentences are written once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import tessera.gateway
from tessera.gateway.operations import models
from tessera.gateway.operations.routes import ROUTES
from tessera_schemas.base import Lenient, Strict
from tessera_schemas.commands import (
    AnswerMove,
    CancelJob,
    HoldJob,
    MoveJob,
    ReportCheckpoint,
    SetPriority,
    SubmitJob,
    SubmitTemplate,
    UpdateJob,
)
from tessera_schemas.documents.registry import registered

GATEWAY = Path(tessera.gateway.__file__).parent
ADDRESS = {"kind", "v", "job_id", "tenant", "dataset"}


def models_of_the_contract(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        if model.__module__.startswith("tessera_schemas."):
            yield model
        yield from models_of_the_contract(model)


def sentences_of_the_contract() -> set[str]:
    registered()  # all modules with models of the contract are imported
    found = [model for base in (Strict, Lenient) for model in models_of_the_contract(base)]
    return {field.description for model in found for field in model.model_fields.values() if field.description}


def test_no_description_of_a_field_of_the_contract_is_written_in_the_gateway_again() -> None:
    sentences = sentences_of_the_contract()
    assert len(sentences) > 300
    written = {
        (source.name, node.value)
        for source in GATEWAY.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in sentences
    }
    assert written == set()


def test_a_submits_body_as_described_has_every_field_that_the_gateway_reads_and_the_commands_have() -> None:
    said = {*SubmitJob.model_fields, *SubmitTemplate.model_fields} - ADDRESS
    assert {*models.SubmitBody.model_fields} == {*models.SubmitEnvelope.model_fields} == said


@pytest.mark.parametrize(
    ("body", "command"),
    [
        (models.CancelBody, CancelJob),
        (models.NoBody, HoldJob),
        (models.PriorityBody, SetPriority),
        (models.QueueBody, MoveJob),
        (models.UpdateBody, UpdateJob),
        (models.CheckpointBody, ReportCheckpoint),
        (models.AnswerBody, AnswerMove),
    ],
    ids=lambda model: model.__name__,
)
def test_the_body_of_an_order_has_the_fields_of_its_command_but_for_the_address(
    body: type[BaseModel], command: type[BaseModel]
) -> None:
    described, said = (model.model_json_schema()["properties"] for model in (body, command))
    # A program names its run by it, or leaves it out.
    own = {"attempt"} if body in (models.CheckpointBody, models.AnswerBody) else set()
    assert described.keys() == said.keys() - ADDRESS
    assert {name: described[name] for name in described.keys() - own} == {
        name: said[name] for name in said.keys() - ADDRESS - own
    }


def test_no_body_says_of_which_job_or_for_whom_it_is() -> None:
    bodies = [route.body for route in ROUTES if route.body is not None]
    assert not any(ADDRESS & body.model_fields.keys() for body in bodies)
