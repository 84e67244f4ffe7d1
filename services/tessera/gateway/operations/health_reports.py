"""
Reports of nodes' health by agents and operators: what is asked, who may say it, and whether it is news.

What the ledger has already is not sent, so that an agent may say the same each minute: every report that is sent is a
fact that the ledger keeps.
"""

from collections import OrderedDict
from typing import Annotated, Literal

import structlog
from aiohttp import web
from pydantic import Field

from tessera.domain.health.known import with_word
from tessera.domain.state import State
from tessera.gateway.entrance.bodies import read_body
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import json_response, refused
from tessera.gateway.operations.commanding import Commands
from tessera.gateway.operations.models import AsOf
from tessera_schemas.base import Lenient, Strict
from tessera_schemas.cluster.health import OPERATOR, Ailment, HealthAction, HealthCause, ReportedAilments, Source
from tessera_schemas.commands import ReportHealth
from tessera_schemas.reasons import Code

SENT_MAX = 20_000  # last reports that are remembered, each of one source about one node

log = structlog.get_logger()


class HealthReportBody(Strict):
    """All that a source sees of a node now, in place of what it said before; no ailments: the node is well."""

    ailments: ReportedAilments
    source: Annotated[Source | None, Field(description="Left out: that of the token, `operator` for an operator's")] = (
        None
    )


class NotedHealth(Lenient):
    """accepted: admission took it. stored: it has not answered in time. known: the ledger has it already."""

    node: str
    source: str
    state: Literal["accepted", "stored", "known"]
    ignored: Annotated[tuple[HealthCause, ...], Field(description="Causes that the configuration ignores")] = ()
    as_of: AsOf


class HealthReports:
    """Handler of reports. `state` is the live folded state; `commands` sends."""

    def __init__(self, state: State, commands: Commands) -> None:
        self._state, self._commands = state, commands
        self._sent: OrderedDict[tuple[str, str], tuple[Ailment, ...]] = OrderedDict()

    async def report_health(self, request: web.Request) -> web.Response:
        """Sends what a source says of a node, unless the ledger has it; raises Refusal."""
        caller, node = request[CALLER], request.match_info["node"]
        if caller.tenant is not None:
            raise refused(Code.FORBIDDEN, "Authorization", "the health of nodes is told by operators and their agents")
        body = await read_body(request, HealthReportBody)
        known = self._state.nodes.get(node)
        if known is None or known.gone:
            raise refused(Code.NO_SUCH_NODE, "node", node if node.isprintable() else "")
        policy = None if self._state.config.body is None else self._state.config.body.health
        if policy is None:
            detail = "the configuration has no `health`, so that nothing that is said of nodes is taken in"
            raise refused(Code.NOT_CONFIGURED, "health", detail)
        source = body.source or caller.source or OPERATOR
        if caller.source not in (None, source):
            detail = f"the token speaks as {caller.source}; leave source out, or report with a token of the other"
            raise refused(Code.FORBIDDEN, "source", detail)
        causes = dict.fromkeys(each.cause for each in body.ailments)
        ignored = tuple(cause for cause in causes if policy.action_for(cause) is HealthAction.IGNORE)
        noted = NotedHealth(node=node, source=source, state="known", ignored=ignored, as_of=self._state.n)
        before = self._state.health.get(node)
        news = with_word(before, source, body.ailments, policy, self._state.ts)
        # What was sent last may not be in the ledger yet: what contradicts it is sent, whatever the state says.
        repeats = self._sent.get((node, source), body.ailments) == body.ailments
        if repeats and news == (() if before is None else before.ailments):
            return json_response(noted)
        self._remember(node, source, body.ailments)
        said = {"node": node, "source": source, "ailments": body.ailments, "by": f"token {caller.token_id}"}
        answer = await self._commands.report_health(ReportHealth(kind="report_health", v=1, **said))
        log.info("health_reported", node=node, source=source, causes=list(causes), token=caller.token_id)
        state: Literal["accepted", "stored"] = "stored" if answer is None else "accepted"
        return json_response(noted.model_copy(update={"state": state}), 202)

    def _remember(self, node: str, source: str, said: tuple[Ailment, ...]) -> None:
        self._sent[node, source] = said
        self._sent.move_to_end((node, source))
        if len(self._sent) > SENT_MAX:
            self._sent.popitem(last=False)
