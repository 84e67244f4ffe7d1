"""Which orders are news, and which the committer's skipping of what is gone says already."""

import pytest

from tessera.engine import ORDER_ENGINE_ID
from tessera.queueing.decide import orders
from tessera_schemas.facts import BindFailed, CancelRequested
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX, Order
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, run_absent
from tests.ledgers import Committed


class World(Committed):
    """What a queueing service would publish now; what it published is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[str, tuple[str, ...]] = {}
        self.begin(node_seen(gpus=1))

    def publish(self) -> list[Order]:
        fresh = orders(self.state, self.published, self.ts)
        self.published |= {order.pool: order.jobs for order in fresh}
        return fresh

    def jobs(self, *keys: str, **spec: str) -> None:
        self.commit(*(admitted(key, job_spec(**spec)) for key in keys))


def ids(*keys: str) -> tuple[str, ...]:
    return tuple(admitted(key).job_id for key in keys)


def test_every_pool_gets_its_first_order_even_an_empty_one() -> None:
    world = World()
    world.commit(config_proposed(config_body(queue("research"), queue("batch", pool="blue")), 1))
    assert [(order.pool, order.jobs) for order in world.publish()] == [("blue", ()), ("default", ())]
    assert world.publish() == []


def test_an_order_says_from_what_it_was_made() -> None:
    world = World()
    world.jobs("k1")
    (order,) = world.publish()
    assert (order.basis_n, order.ts, order.engine, order.policy) == (world.state.n, world.ts, ORDER_ENGINE_ID, 1)


def test_a_new_job_is_news() -> None:
    world = World()
    world.publish()
    world.jobs("k1")
    (order,) = world.publish()
    assert order.jobs == ids("k1")


def test_a_line_that_only_got_shorter_is_no_news() -> None:
    world = World()
    world.jobs("k1", "k2", "k3")
    world.publish()
    world.commit(CancelRequested(kind="cancel_requested", job_id=ids("k2")[0]))
    world.commit(orders=(world.line(),))
    assert world.publish() == []


def test_a_job_that_comes_up_behind_the_five_hundred_and_twelfth_is_news() -> None:
    world = World()
    world.jobs(*(f"k{number}" for number in range(HEADS_MAX + 1)))
    world.publish()
    world.commit(CancelRequested(kind="cancel_requested", job_id=ids("k0")[0]))
    (order,) = world.publish()
    assert order.jobs[-1] == ids(f"k{HEADS_MAX}")[0]


@pytest.mark.parametrize("old", [("k1", "k2"), ("k2",), ()])
def test_a_line_whose_order_changed_or_that_grew_is_news(old: tuple[str, ...]) -> None:
    world = World()
    world.jobs("k2", "k1")
    assert orders(world.state, {"default": ids(*old)}, world.ts)


def test_a_more_urgent_job_is_news() -> None:
    world = World()
    world.jobs("k1")
    world.publish()
    world.jobs("k2", priority_class="high")
    (order,) = world.publish()
    assert order.jobs == ids("k2", "k1")


def test_the_end_of_a_back_off_is_news_when_time_comes_although_nothing_was_recorded() -> None:
    world = World()
    world.jobs("k1", "k2")
    world.commit(orders=(world.line(),))
    run = f"{ids('k1')[0]}-1"
    world.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=Reason(code=Code.BIND_REFUSED)))
    world.commit(run_absent(run))
    world.published.clear()
    (order,) = world.publish()
    assert ids("k1")[0] not in order.jobs
    world.ts += 10_000
    (order,) = world.publish()
    assert order.jobs[0] == ids("k1")[0]


def test_a_pool_that_is_in_no_configuration_any_more_gets_no_order() -> None:
    world = World()
    world.jobs("k1")
    world.publish()
    world.commit(config_proposed(config_body(queue("research", pool="blue")), 1))
    assert [order.pool for order in world.publish()] == ["blue"]
