"""
A submit on its way, by NATS or by HTTP: read here as strictly as admission will, then sent, or asked for a dry run.

What is found here is told with all that admission has against the job besides.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tessera.client.input.files import as_json
from tessera.client.outcomes import Failure, Refused, Submitted
from tessera.client.sending.job_input import find_faults, read_submit
from tessera.client.sending.keys import choose_key
from tessera.client.sending.sending_by_api import PUBLISH_SECONDS, submit_by_api
from tessera.kernel.errors import KernelError, Transient
from tessera.kernel.ids import random_key
from tessera_schemas import subjects
from tessera_schemas.base import DIGEST_CHARACTERS, job_id
from tessera_schemas.commands import Answer
from tessera_schemas.events import JobAdmittedV1, JobRefusedV1
from tessera_schemas.reasons import PublicReason
from tessera_schemas.text.reading import besides, too_large

if TYPE_CHECKING:
    from tessera.client.connect.api import Api
    from tessera.client.sending.watching import LedgerWord, SubmitWatch
    from tessera.kernel.messaging.requests import Requester

AGAIN_SECONDS = 2.0
"""Without a word of the ledger for so long a submit is sent again."""
BESIDES_SECONDS = 2.0
"""Patience for admission's reasons beside those that are known already."""


class Sender:
    """Sends for one tenant of a shard: to NATS through `asking`, else to the API that `api` opens."""

    def __init__(
        self,
        shard: str,
        tenant: str,
        asking: "Requester | None",
        words: "Callable[[], Awaitable[SubmitWatch]]",
        api: "Callable[[], Api] | None" = None,
    ) -> None:
        self._shard, self._tenant, self._asking, self._api = shard, tenant, asking, api
        self._words = words

    async def send(
        self,
        asked: Mapping[str, Any],
        key: str | None,
        *,
        answer_seconds: float,
        publish_seconds: float | None,
        notify: Callable[[str], None],
        against: Sequence[PublicReason],
    ) -> Submitted:
        """See `Tessera.send`."""
        if against:
            raise Refused(await self._all_against(asked, key, (*against, *find_faults(asked))))
        try:
            read, chosen = read_submit(asked, key, notify)
        except Refused as refused:
            raise Refused(await self._all_against(asked, key, refused.reasons)) from refused
        if self._api is not None:
            patience = publish_seconds or PUBLISH_SECONDS
            return await submit_by_api(self._api(), dict(asked), chosen, patience)
        job = job_id(self._shard, self._tenant, chosen)
        data = type(read).model_validate({**dict(read), "key": chosen, "tenant": self._tenant}).to_bytes()
        with (await self._words()).expecting(job, read.digest()[:DIGEST_CHARACTERS]) as word:
            return await self._until_said(word, data, job, chosen, answer_seconds, publish_seconds)

    async def _until_said(
        self, word: "LedgerWord", data: bytes, job: str, key: str, seconds: float, publish_seconds: float | None
    ) -> Submitted:
        """
        Send the submit, and wait for the ledger's word.

        The ledger says nothing of a job that it had before. Admission tells that of one that the views show; of one
        that they do not show yet it does when it is asked again.
        """
        notes: tuple[str, ...] = ()
        for patience in (AGAIN_SECONDS, seconds):
            answer = await self._ask(data, job, seconds, publish_seconds, tell_end=True)
            if answer is None:
                return Submitted(job, False, key)
            notes = answer.notes
            if answer.existing:
                return Submitted(job, True, key, answer.ended, notes, answer.number, state="existing")
            event = await word.within(min(patience, seconds))
            if event is not None and event.type == JobRefusedV1.type:
                raise Refused(JobRefusedV1.model_validate(event.data).reasons, job)
            if event is not None:
                number = JobAdmittedV1.model_validate(event.data).number
                return Submitted(job, True, key, None, notes, number, state="queued")
        return Submitted(job, True, key, None, notes, state="admitted")

    async def judge(
        self, asked: Mapping[str, Any], key: str | None, answer_seconds: float, against: Sequence[PublicReason]
    ) -> str:
        """See `Tessera.judge`."""
        own = besides(against, find_faults(asked))
        if own:
            raise Refused(await self._all_against(asked, key, own))
        return await self._dry_run(asked, key, answer_seconds)

    async def _all_against(
        self, asked: Mapping[str, Any], key: str | None, own: Sequence[PublicReason]
    ) -> tuple[PublicReason, ...]:
        """The reasons found here, and what admission has besides against a job, if it answers now."""
        try:
            await self._dry_run(asked, key, BESIDES_SECONDS)
        except Refused as refused:
            return besides(own, refused.reasons)
        except (KernelError, Failure):  # nobody answers now, or not to us: what was found here is told all the same
            pass
        return tuple(own)

    async def _dry_run(self, asked: Mapping[str, Any], key: str | None, seconds: float) -> str:
        chosen, dry = choose_key(key, "", {}, random_key).key, {**asked, "dry_run": True}
        data = as_json({"v": 1, "key": chosen, "tenant": self._tenant or None, **dry})
        _check_size(data)
        if self._api is not None:
            return (await submit_by_api(self._api(), dry, chosen, publish_seconds=0)).job_id
        job = job_id(self._shard, self._tenant, chosen)
        if await self._ask(data, job, seconds, publish_seconds=0) is None:
            raise Transient("admission has not answered")
        return job

    async def _ask(
        self, data: bytes, job: str, answer_seconds: float, publish_seconds: float | None, tell_end: bool = False
    ) -> Answer | None:
        """Admission's yes, None when it has not answered in time. Raises Refused, Transient."""
        assert self._asking is not None
        _check_size(data, job)
        answer = await self._asking.ask(
            subjects.submit(self._shard, self._tenant),
            data,
            answer_seconds=answer_seconds,
            publish_seconds=publish_seconds,
            tell_end=tell_end,
        )
        if answer is not None and not answer.accepted:
            raise Refused(answer.reasons, answer.job_id)
        return answer


def _check_size(data: bytes, job: str = "") -> None:
    """Raises Refused for more bytes than a command may have."""
    if len(data) > subjects.SUBMIT_BYTES_MAX:
        raise Refused((too_large(len(data)),), job)
