"""A pool with GPUs of two vendors and no models: what jobs of the one usually ask for says nothing about the other."""

from typing import Any

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node
from tessera.domain.mix import Mix, MixKind, kind_of, other_resources, weights
from tessera.domain.storing.fast import replace
from tessera.engine.pricing.pricing_problem import make_pricing_problem
from tessera.engine.scoring.workload import PodWorkload
from tests.builders import node_seen

AMD = "amd.com/gpu"
QUARTERS, WHOLE = Need(1000, 1, gpu_milli=250), Need(1000, 1, gpus=8, gpu_resource=AMD)
MIX = ((kind_of(QUARTERS), 1000), (kind_of(WHOLE), 1000))
"""Jobs that name no resource take quarters of the pool's own GPUs; those of AMD whole nodes."""


def node(name: str, *free: int, **seen: Any) -> Node:
    there = empty_node(node_seen(name, len(free), gpu_model="", device_profile="visible-devices", **seen))
    return replace(there, gpu_free=free)


def amd(name: str, *free: int) -> Node:
    return node(name, *free, gpu_resource=AMD, gpu_default=False)


def test_free_gpus_of_a_vendor_are_usable_to_the_jobs_of_that_vendor_alone() -> None:
    workload, free = PodWorkload(MIX), (1000,) * 8
    assert workload.usable(node("a", *free), 64_000, free) == 8000 * 1000
    assert workload.usable(amd("b", *free), 64_000, free) == 8000 * 1000
    rest = (1000,) * 7 + (250,)
    assert workload.usable(node("a", *rest), 64_000, rest) == 7250 * 1000
    assert workload.usable(amd("b", *rest), 64_000, rest) == 0, "no job of AMD's takes less than eight"


def test_each_vendor_is_a_model_of_its_own_to_prices() -> None:
    there = [node("a", *(1000,) * 8), amd("b", *(1000,) * 8)]
    found = make_pricing_problem(Mix("default", settled=1, known=MIX), there, rehearsed=False)
    assert found is not None
    assert found.models == 2
    assert sorted(models for *_, models, _ in found.kinds) == [1, 2]


def test_of_a_vendor_for_whose_gpus_nobody_has_asked_the_same_is_presumed() -> None:
    there = [node("a", *(1000,) * 8), amd("b", *(1000,) * 8)]
    known = weights({}, 0, 8000, (), other_resources(there))
    own = {kind: weight for kind, weight in known.items() if kind.gpus and not kind.gpu_resource}
    assert own == {replace(kind, gpu_resource=""): weight for kind, weight in known.items() if kind.gpu_resource == AMD}
    assert own == {kind: weight for kind, weight in weights({}, 0, 8000, ()).items() if kind.gpus}
    assert weights({}, 0, 8000, (), other_resources(there[:1])) == weights({}, 0, 8000, ())


def test_users_pods_of_nvidia_s_gpus_are_of_one_kind_with_jobs_that_name_no_resource() -> None:
    assert kind_of(Need(1000, 1, gpus=1, as_made=True)) == MixKind(1000, 1000, 1)
