"""The learnt mix of a pool: what is counted, when decisions hear of it, what is forgotten."""

from random import Random

import pytest

from tessera.domain import mix as module
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import (
    BOUND_FADES_OVER,
    BOUND_MODELS_MAX,
    KINDS_MAX,
    PODS_COUNTED,
    SETTLED_AT,
    Mix,
    MixKind,
    Seen,
    presumed,
    presumed_bound,
    see,
)
from tessera.domain.table import Table
from tests.builders import node_seen


class Pool:
    """The tables of one pool with one node of 8 GPUs and 64 CPUs."""

    def __init__(self) -> None:
        self.seen: Table[Seen] = Table()
        self.mixes: Table[Mix] = Table()
        self.nodes: Table[Node] = Table()
        self.nodes.put("node-a", empty_node(node_seen("node-a", 8)))

    def come(self, times: int = 1, pods: int = 1, cpu_milli: int = 4000, **need: object) -> None:
        for _ in range(times):
            asked = Need(cpu_milli, 1, **({"gpus": 1} | need))  # type: ignore[arg-type]
            see(self.seen, self.mixes, self.nodes, "default", (RoleNeed("w", pods, asked),))

    @property
    def mix(self) -> Mix:
        found = self.mixes.get("default")
        assert found is not None
        return found

    def weight(self, kind: MixKind) -> int:
        return dict(self.mix.known).get(kind, 0)


ONE_GPU = MixKind(4000, 1000, 1)


def test_the_first_job_settles_a_mix_of_mostly_presumed_kinds_for_its_pool() -> None:
    pool = Pool()
    pool.come()
    assert pool.mix.settled == 1
    assert pool.mix.largest_cpu_milli == 64_000
    assert pool.weight(ONE_GPU) == 1000
    assert {kind for kind, _ in presumed(8000)} <= {kind for kind, _ in pool.mix.known}


def test_between_two_settlements_jobs_are_counted_and_decisions_hear_nothing() -> None:
    pool = Pool()
    pool.come()
    known = pool.mix.known
    pool.come(48)
    assert pool.mix.arrivals == 49
    assert pool.mix.known is known
    pool.come()
    assert pool.mix.arrivals == SETTLED_AT[0]
    assert pool.weight(ONE_GPU) == 50_000


def test_after_400_arrivals_nothing_is_presumed_any_more() -> None:
    pool = Pool()
    pool.come(400)
    assert {kind: weight for kind, weight in pool.mix.known if not kind.models} == {ONE_GPU: 400_000}


def test_a_gang_counts_as_a_few_jobs() -> None:
    pool = Pool()
    pool.come(pods=500)
    assert pool.mix.arrivals == PODS_COUNTED


def test_what_is_asked_as_a_share_or_without_a_gpu_is_a_kind_of_its_own() -> None:
    pool = Pool()
    pool.come(gpus=0, gpu_milli=250, gpu_models=("a100",))
    pool.come(gpus=0, gpu_models=("a100",))
    kinds = {row.kind for row in pool.seen.values()}
    assert kinds == {MixKind(4000, 250, 1, ("a100",)), MixKind(4000, 0, 0)}


def test_mig_instances_are_not_counted() -> None:
    pool = Pool()
    pool.come(gpus=0, mig_profile="1g.5gb")
    assert len(pool.seen) == len(pool.mixes) == 0


def test_the_order_in_which_kinds_came_does_not_matter_to_what_is_settled() -> None:
    kinds = [{"cpu_milli": 1000 * (1 + n % 7), "gpus": 1 + n % 3} for n in range(SETTLED_AT[0] - 1)]
    settled = []
    for seed in range(4):
        pool = Pool()
        pool.come()  # the first one settles by itself
        Random(seed).shuffle(kinds)
        for kind in kinds:
            pool.come(**kind)
        settled.append(pool.mix)
    assert settled[0].settled == 2
    assert settled.count(settled[0]) == len(settled)


def test_the_rarest_kinds_make_way_when_there_are_too_many() -> None:
    pool = Pool()
    pool.come(3)
    for number in range(3 * KINDS_MAX):
        pool.come(cpu_milli=10_000 + number)
    assert len(pool.seen) == pool.mix.kinds <= KINDS_MAX
    assert ONE_GPU in {row.kind for row in pool.seen.values()}


def test_old_arrivals_count_half_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ARRIVALS_MAX", 200)
    monkeypatch.setattr(module, "SETTLED_AT", (50, 150))
    pool = Pool()
    pool.come(1, cpu_milli=9000)
    pool.come(199)
    assert pool.mix.arrivals == 100
    assert {row.kind: row.count for row in pool.seen.values()} == {ONE_GPU: 99}
    assert pool.mix.kinds == 1
    assert pool.weight(MixKind(9000, 1000, 1)) == 1000  # until the next time
    settled = pool.mix.settled
    pool.come(50)
    assert pool.mix.settled == settled + 1


def test_a_few_jobs_are_presumed_to_be_bound_to_each_model_of_the_pool_until_3000_came() -> None:
    pool = Pool()
    pool.nodes.put("node-b", empty_node(node_seen("node-b", 4, gpu_model="a100")))
    pool.nodes.put("node-c", empty_node(node_seen("node-c", 0, gpu_model="none")))
    bound = list[int]()
    for _ in range(5):
        pool.come(SETTLED_AT[0] if not bound else pool.mix.settle_at - pool.mix.arrivals)
        bound.append(sum(weight for kind, weight in pool.mix.known if kind.models))
        if pool.mix.arrivals < BOUND_FADES_OVER:
            assert {kind.models for kind, _ in pool.mix.known} == {(), ("a100",), ("h100",)}
    assert pool.mix.arrivals == BOUND_FADES_OVER
    assert bound == sorted(bound, reverse=True)
    assert bound[-1] == 0


def test_of_many_models_only_so_many_are_presumed_and_all_weigh_no_more_together() -> None:
    few, many = (
        sum(weight for _, weight in presumed_bound(8000, [f"m{n:03}" for n in range(models)])) for models in (2, 500)
    )
    assert len({kind for kind, _ in presumed_bound(8000, [f"m{n:03}" for n in range(500)])}) == 3 * BOUND_MODELS_MAX
    assert 0 < many < few
