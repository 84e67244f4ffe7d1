"""`GET /v1/budgets`: who sees which, with what numbers; and what a submit says of a budget that it may pass."""

from datetime import UTC, datetime

from tessera.domain.folding.spending import counted
from tessera.gateway.reading.budgets import budget_notes, budget_standings
from tessera_schemas.config import ConfigBody, Flavor, Queue
from tessera_schemas.work.budgets import MICROS, Budget
from tessera_schemas.work.money import FlavorPrice, Money
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.unit.gateway.gateway_world import World

HOUR = 3_600_000
QUEUES = (Queue(name="research", tenants=("lab",)), Queue(name="beside", tenants=("other",)))
BUDGETS = (
    Budget(tenant="lab", amount=100),
    Budget(tenant="other", gpu_hours=50),
    Budget(tenant="other", project="vlm", gpu_hours=20),
    Budget(queue="research", gpu_hours=50, when_spent="last"),
)


def configured(*budgets: Budget) -> ConfigBody:
    money = Money(currency="EUR", prices=(FlavorPrice(flavor="a100", gpu_hour_micros=2_000_000),))
    more = {"flavors": (Flavor(name="a100"),), "money": money, "budgets": budgets}
    return ConfigBody.model_validate(config_body(*QUEUES).model_copy(update=more).model_dump())


def begun(*budgets: Budget, ts: str = "2026-11-29T23:59:56") -> Committed:
    started = int(datetime.fromisoformat(ts).replace(tzinfo=UTC).timestamp() * 1000)
    ledger = Committed(ts=started).begin(node_seen("node-a"), body=configured(*budgets))
    ledger.commit(admitted("k1", job_spec(role(gpus=2))))
    ledger.commit(orders=(ledger.line(),), ms=0)
    return ledger


def test_a_budget_is_expected_to_spend_what_runs_hold_until_the_months_end() -> None:
    ledger = begun(*BUDGETS)
    lab, other, _, research = budget_standings(ledger.state, ledger.ts + 6 * HOUR, None, ())
    assert (lab.unit, lab.spent_micros, lab.limit_micros, lab.percent) == ("EUR", 24 * MICROS, 100 * MICROS, 24)
    assert (lab.month, lab.expected_micros, lab.is_spent) == ("2026-11", 96 * MICROS, False)
    assert (research.unit, research.spent_micros, research.expected_micros) == ("GPU-hours", 12 * MICROS, 48 * MICROS)
    assert (other.spent_micros, other.expected_micros) == (0, 0)
    later = budget_standings(ledger.state, ledger.ts + 25 * HOUR, None, ())[0]
    assert (later.month, later.spent_micros, later.before_micros) == ("2026-12", 4 * MICROS, 96 * MICROS)


async def test_a_tenant_sees_its_budget_and_those_of_its_queues_and_an_operator_all(world: World) -> None:
    await world.commit(config_proposed(configured(*BUDGETS), world.committed.state.config.version))
    lab, other, operator = world.token("lab"), world.token("other"), world.token(None)
    async with world.gateway():
        seen = [await world.ask("GET", "/v1/budgets", token) for token in (lab, other, operator)]
    names = [[item["budget"] for item in each.body["items"]] for each in seen]
    assert names == [
        ["tenant/lab", "queue/research"],
        ["tenant/other", "project/other/vlm"],
        ["tenant/lab", "tenant/other", "project/other/vlm", "queue/research"],
    ]


def notes(ledger: Committed, gpus: int, hours: int = 1) -> list[str]:
    spec = job_spec(role(gpus=gpus), time_limit_seconds=hours * 3600)
    return list(budget_notes(ledger.state, "lab", spec, ledger.ts))


def test_a_submit_says_which_budget_a_run_may_pass_and_nothing_of_one_that_has_enough() -> None:
    ledger = begun(Budget(tenant="lab", amount=16), Budget(queue="research", gpu_hours=8))
    assert notes(ledger, gpus=8) == []
    assert notes(ledger, gpus=8, hours=2) == [
        "a run may spend 32.00 EUR, and budget tenant/lab has 16.00 EUR left this month; then: hold",
        "a run may spend 16.00 GPU-hours, and budget queue/research has 8.00 GPU-hours left this month; then: hold",
    ]
    assert notes(ledger, gpus=0, hours=200) == []
    ledger.commit(ms=5 * HOUR)
    assert counted(ledger.state, ledger.state.spending.get("tenant/lab"), ledger.ts).level == 100
    assert notes(ledger, gpus=1)[0] == "budget tenant/lab is spent until the month ends or more is granted (hold)"
