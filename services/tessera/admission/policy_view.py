"""
Tenant policy and node shapes, read again and again from the shared views and used as they were last known.

Losing the views never stops admission: what was known stays in force. A cursor that went back is a view being rebuilt
and is passed over. Before anything is known, no job can be judged at all.
"""

import asyncio

import structlog
from pydantic import ValidationError

from tessera.admission.decide.policy import AdmissionPolicy, NodeShapes, templates_of, tree_of
from tessera.domain.queues import QueueTree
from tessera.kernel.errors import Transient
from tessera.kernel.ports import Clock, ProjectionStore
from tessera_schemas.config import Config
from tessera_schemas.work.templates import JobTemplate

AGAIN_SECONDS = 0.05
"""Refusals make us look again, at most this often, so that a configuration counts as soon as it is visible."""

log = structlog.get_logger()


class PolicyView:
    """
    `known` is the newest policy read; None until there was one. `has_steps`: the installation has an image for
    `launcher: steps`.
    """

    def __init__(self, store: ProjectionStore, clock: Clock, seconds: float, has_steps: bool = False) -> None:
        self._store, self._clock, self._seconds, self._has_steps = store, clock, seconds, has_steps
        self._shapes = NodeShapes()
        self._stored: bytes | None = None
        self._configured: tuple[QueueTree | None, dict[str, JobTemplate]] = None, {}
        self._read_at = 0.0
        self._away = False
        self._first = asyncio.Event()
        self.known: AdmissionPolicy | None = None

    def problem(self) -> str | None:
        """Why no job can be judged yet; None once one can."""
        return None if self.known is not None else "no tenant policy yet: the shared views hold nothing of this shard"

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing is configured as far as is known, and nobody can look whether that is still so."""
        return self._away and self.known is not None and self.known.tree is None

    async def wait_for_first(self) -> None:
        """Waits until a policy was read for the first time."""
        await self._first.wait()

    async def keep_fresh(self) -> None:
        """Reads the policy again every `seconds`, for ever."""
        while True:
            await self._read()
            await self._clock.sleep(self._seconds)

    async def look_again(self) -> AdmissionPolicy | None:
        """
        The policy after one more look, unless the last one was just now or the views are away.

        While nothing is configured at all, every job would be refused for it: then the next look is waited for, since
        the first configuration may have come into force just now, too.
        """
        wait = self._read_at + AGAIN_SECONDS - self._clock.monotonic()
        if not self._away and wait > 0 and self.known is not None and self.known.tree is None:
            await self._clock.sleep(wait)
            wait = 0
        if not self._away and wait <= 0:
            await self._read()
        return self.known

    def _is_news(self, n: int) -> bool:
        return n > (0 if self.known is None else self.known.n)

    async def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            if not self._is_news(await self._store.cursor()):
                self._away = False
                return
            # As of one moment: views that are lost and built again in between would look like a shard without policy.
            n, (configs, nodes, remembered) = await self._store.rows_as_of("config", "nodes", "remembered_nodes")
            if not self._is_news(n):
                self._away = False
                return
            stored = configs.get("config")
            if self.known is None or stored != self._stored:
                config = None if stored is None else Config.model_validate_json(stored)
                self._configured, self._stored = (tree_of(config), templates_of(config)), stored
            tree, templates = self._configured
            pools = self._shapes.update(nodes, remembered)
            self.known = AdmissionPolicy(n, pools.in_numbers(tree), pools, templates, self._has_steps)
        except (Transient, ValidationError) as error:
            if not self._away:
                log.warning("policy_not_read", error=str(error), as_of=self.known.n if self.known else None)
            self._away = True
            return
        self._away = False
        self._first.set()
