"""
What may be asked: submit and control on SUBMIT (by tenants), configuration and control on CONTROL (by operators).

The tenant is the subject's, which the server enforces; a `tenant` in the payload must agree with it.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tessera_schemas.base import Count, JobId, Key, Lenient, Name, NodeName, Strict, Text
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Reason


class SubmitJob(Strict):
    """Take this job in, once, however often it is sent with this key."""

    kind: Literal["submit_job"]
    v: Literal[1]
    key: Key
    tenant: Name | None = None
    spec: JobSpec


class CancelJob(Strict):
    kind: Literal["cancel_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None
    why: Text = ""


class HoldJob(Strict):
    """Keep a queued job from starting."""

    kind: Literal["hold_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class ReleaseJob(Strict):
    """Let a held job start again."""

    kind: Literal["release_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class SetPriority(Strict):
    """Give a job another priority class; its place in line follows it."""

    kind: Literal["set_priority"]
    v: Literal[1]
    job_id: JobId
    priority_class: Name
    tenant: Name | None = None


class DrainNode(Strict):
    """
    Let nothing new start on a node; with `evict`, what runs there restarts elsewhere. `undo` makes it common again.
    """

    kind: Literal["drain_node"]
    v: Literal[1]
    node: NodeName
    evict: bool = False
    undo: bool = False
    why: Text = ""


class ApplyConfig(Strict):
    """Make this the configuration if it was made from version `expected_version`."""

    kind: Literal["apply_config"]
    v: Literal[1]
    expected_version: Count
    body: ConfigBody


JobCommand = CancelJob | HoldJob | ReleaseJob | SetPriority
AnyTenantCommand = SubmitJob | JobCommand
AnyOperatorCommand = ApplyConfig | DrainNode | JobCommand
TenantCommand = Annotated[AnyTenantCommand, Field(discriminator="kind")]
OperatorCommand = Annotated[AnyOperatorCommand, Field(discriminator="kind")]

TENANT_COMMAND: TypeAdapter[AnyTenantCommand] = TypeAdapter(TenantCommand)
OPERATOR_COMMAND: TypeAdapter[AnyOperatorCommand] = TypeAdapter(OperatorCommand)

REPLY_HEADER = "Tessera-Reply"
"""Where the client wants its answer: a subject below `_INBOX.<tenant>.`; anything else is not answered."""


class Answer(Lenient):
    """What admission says to the client's inbox: accepted, or all reasons why not."""

    accepted: bool
    job_id: str = ""
    reasons: tuple[Reason, ...] = ()
