"""
What may be asked: submit and control on SUBMIT (by tenants), configuration and control on CONTROL (by operators).

The tenant is the subject's, which the server enforces; a `tenant` in the payload must agree with it.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tessera_schemas.base import Count, JobId, Key, Lenient, Name, Strict, Text
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


class ApplyConfig(Strict):
    """Make this the configuration if it was made from version `expected_version`."""

    kind: Literal["apply_config"]
    v: Literal[1]
    expected_version: Count
    body: ConfigBody


TenantCommand = Annotated[SubmitJob | CancelJob | HoldJob | ReleaseJob, Field(discriminator="kind")]
OperatorCommand = Annotated[ApplyConfig | CancelJob | HoldJob | ReleaseJob, Field(discriminator="kind")]

TENANT_COMMAND: TypeAdapter[SubmitJob | CancelJob | HoldJob | ReleaseJob] = TypeAdapter(TenantCommand)
OPERATOR_COMMAND: TypeAdapter[ApplyConfig | CancelJob | HoldJob | ReleaseJob] = TypeAdapter(OperatorCommand)

REPLY_HEADER = "Tessera-Reply"
"""Where the client wants its answer: a subject below `_INBOX.<tenant>.`; anything else is not answered."""


class Answer(Lenient):
    """What admission says to the client's inbox: accepted, or all reasons why not."""

    accepted: bool
    job_id: str = ""
    reasons: tuple[Reason, ...] = ()
