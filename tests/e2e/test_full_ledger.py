"""A tenant that floods, on real servers: budgets first; then a ledger that gets full, and is enlarged."""

import asyncio
from base64 import b85encode
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tessera.client.outcomes import Refused
from tessera.kernel.provisioning.streams import Bounds, ensure_streams
from tessera_local.platform import EVENTS_BYTES_MAX, Platform
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Tenant
from tessera_schemas.job import JobSpec
from tests.e2e.live import TENANTS, Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEDGER_BYTES = 8 * 2**20
BODY_BYTES = 100_000
ARGUMENT_BYTES = 25_000


def limited(**lab: Any) -> ConfigBody:
    return configuration(tenants=(Tenant(name="lab", limits=Limits(**lab)), Tenant(name="ops")))


def large() -> JobSpec:
    """A job of 100 KB that no compression makes much smaller."""
    spec, chance = job("large"), Random(7)
    args = tuple(b85encode(chance.randbytes(ARGUMENT_BYTES * 4 // 5)).decode() for _ in range(BODY_BYTES // 25_000))
    template = spec.roles[0].template.model_copy(update={"args": args})
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"template": template}),)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    directory = tmp_path_factory.mktemp("full")
    body = limited(bytes_per_second=1000, bytes_burst=4 * BODY_BYTES + BODY_BYTES // 2)
    async with (
        Platform(directory, tenants=TENANTS, ledger_bytes_max=LEDGER_BYTES) as platform,
        Live.on(platform, body) as live,
    ):
        yield live


async def sent(live: Live, spec: JobSpec, tenant: str, key: str) -> Refused | None:
    """What is said against the job; None when it is accepted."""
    try:
        await live.submit(spec, tenant, key)
    except Refused as refused:
        return refused
    return None


def code_of(refused: Refused | None) -> str:
    return "" if refused is None else refused.reasons[0].code


async def test_who_floods_is_told_when_to_come_again_and_delays_nobody(live: Live) -> None:
    said = await asyncio.gather(*(sent(live, large(), "lab", f"flood-{number}") for number in range(12)))
    refused = [one.reasons[0] for one in said if one is not None]
    assert len(refused) == 8
    assert {(reason.code, reason.field) for reason in refused} == {("TenantBudgetExceeded", "limits.bytes_per_second")}
    assert all(reason.numbers["retry_after_seconds"] > 20 for reason in refused)
    assert await sent(live, job(), "ops", "quiet") is None
    await live.until_ended(job_id("main", "ops", "quiet"))
    status, headers, problem = await over_http(live, large(), "by-http")
    assert (status, problem["code"]) == (429, "TenantBudgetExceeded")
    assert int(headers["Retry-After"]) == problem["retry_after"] > 20


async def test_a_ledger_that_gets_full_keeps_new_work_out_and_everything_else_going(live: Live) -> None:
    await live.configure(limited(bytes_per_second=None, submits_per_second=None), live.state.config.version)
    assert await sent(live, job(seconds=600), "ops", "long") is None
    long = job_id("main", "ops", "long")
    await live.until_phase(long, "running")
    flood = 0
    while code_of(await sent(live, large(), "lab", f"more-{flood}")) != "LedgerFull":
        flood += 1
        assert flood * BODY_BYTES < 10 * LEDGER_BYTES, "nothing says that the ledger is full"
    # Who fills it uses up a share of what is left; others have theirs.
    assert await sent(live, job(), "ops", "in-time") is None
    while code_of(await sent(live, large(), "ops", f"more-{flood}")) != "LedgerFull":
        flood += 1
        assert flood * BODY_BYTES < 10 * LEDGER_BYTES, "nothing says that the ledger is full"
    # Everybody is told the truth, and what is there goes on.
    said = await sent(live, job(), "ops", "late")
    assert said is not None
    assert said.reasons[0].code == "LedgerFull"
    assert said.reasons[0].numbers["retry_after_seconds"] > 0
    status, headers, problem = await over_http(live, large(), "by-http")
    assert (status, problem["code"], "Retry-After" in headers) == (503, "LedgerFull", True)
    # Shares that are used up before the reserve is reached are those tenants' own trouble: a third would be let in.
    by_share = "a tenant's share of the rest" in said.reasons[0].detail
    assert by_share or "LedgerFull" in (await live.platform.ready("admission"))["ledger"]
    assert (await live.platform.ready("scheduler"))["halted"] == "ok"
    await live.clients["ops"].cancel(long)
    await live.until_phase(long, "cancelled")
    await live.until(lambda state: not len(state.runs), "its devices are free")
    # There is room again once an operator has made some; the same keys are good.
    larger = Bounds(ledger_bytes_max=8 * LEDGER_BYTES, events_bytes_max=EVENTS_BYTES_MAX)
    await live.platform._as("administrator", "main", lambda admin: ensure_streams(admin, "main", larger, mend=True))

    async def taken() -> bool:
        return await sent(live, job(), "ops", "late") is None

    await eventually(taken, "new work is taken in again")
    await assert_all_is_well(live)


async def over_http(live: Live, spec: JobSpec, key: str) -> tuple[int, Any, Any]:
    said = await live.command("token", "new", "lab")
    headers = {"Authorization": f"Bearer {said.out.strip()}"}
    body = {"key": key, "spec": spec.model_dump(mode="json", exclude_defaults=True)}
    url = f"{live.platform.gateway_url}/v1"
    async with aiohttp.ClientSession(headers=headers) as http:

        async def known() -> bool:
            async with http.get(f"{url}/jobs") as answer:
                return answer.status == 200

        await eventually(known, "the gateway takes the new token")
        async with http.post(f"{url}/jobs", json=body) as answer:
            return answer.status, answer.headers, await answer.json()
