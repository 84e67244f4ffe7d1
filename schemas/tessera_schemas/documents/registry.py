"""
Every type of the contract with its version: what the generated schemas and the golden bytes are made from.

The unions are read, not listed again, so that a new command, fact or record cannot be forgotten here.
"""

from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel

from tessera_schemas.commands import Answer, AnyClusterCommand, AnyOperatorCommand, AnyTenantCommand
from tessera_schemas.config import Config
from tessera_schemas.events import EVENT_TYPES, CloudEvent, PublicEvent
from tessera_schemas.facts import FACTS, FactMessage
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import RECORDS, LedgerMessage
from tessera_schemas.shard.orders import Order
from tessera_schemas.views import JobView, NodeView, QueueView

TENANT_COMMANDS: tuple[type[BaseModel], ...] = get_args(AnyTenantCommand)
OPERATOR_COMMANDS: tuple[type[BaseModel], ...] = get_args(AnyOperatorCommand)
CLUSTER_COMMANDS: tuple[type[BaseModel], ...] = get_args(AnyClusterCommand)
COMMANDS = tuple(dict.fromkeys((*TENANT_COMMANDS, *OPERATOR_COMMANDS, *CLUSTER_COMMANDS)))


@dataclass(frozen=True, slots=True)
class Registered:
    """One type. `stored_in` is the model whose bytes are stored: the type itself, or the message that carries it."""

    name: str
    version: int
    model: type[BaseModel]
    stored_in: type[BaseModel]

    @property
    def id(self) -> str:
        """Name with version, for example `fact.pods_made.v1` or `io.tessera.job.bound.v1`."""
        return f"{self.name}.v{self.version}"

    @property
    def urn(self) -> str:
        return urn(self.id)


def urn(type_: str) -> str:
    """The name of a type's JSON Schema; for an event the envelope's `dataschema`."""
    return f"urn:tessera:schema:{type_}"


def dataschema(event: type[PublicEvent]) -> str:
    return urn(event.type)


def kind_of(model: type[BaseModel]) -> str:
    """Value of the `kind` field of a command, fact or record."""
    (kind,) = get_args(model.model_fields["kind"].annotation)
    return str(kind)


def _event(model: type[PublicEvent]) -> Registered:
    name, _, version = model.type.rpartition(".v")
    return Registered(name, int(version), model, CloudEvent)


def registered() -> tuple[Registered, ...]:
    """Every type, in an order that does not change."""
    whole: tuple[tuple[str, type[BaseModel]], ...] = (
        ("answer", Answer),
        ("cloud_event", CloudEvent),
        ("config", Config),
        ("fact_message", FactMessage),
        ("job_spec", JobSpec),
        ("ledger_message", LedgerMessage),
        ("order", Order),
        ("view.job", JobView),
        ("view.node", NodeView),
        ("view.queue", QueueView),
    )
    return (
        *(Registered(f"command.{kind_of(model)}", 1, model, model) for model in COMMANDS),
        *(Registered(f"fact.{kind_of(model)}", 1, model, FactMessage) for model in FACTS),
        *(Registered(f"record.{kind_of(model)}", 1, model, LedgerMessage) for model in RECORDS),
        *(_event(model) for model in EVENT_TYPES),
        *(Registered(name, 1, model, model) for name, model in whole),
    )
