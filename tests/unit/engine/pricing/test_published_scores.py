"""Scores of the published policies on single nodes, worked out by hand from the published formulas."""

import pytest

from tessera.engine.pricing.choosing import choice
from tests.unit.engine.pricing.pools import pool, room, share, whole, without_gpu


def score(policy, ask, *rooms, run_before=()):
    packer = pool(*rooms, policy=policy)
    for earlier in run_before:
        packer.place(packer.add_class(earlier))
    t, core = packer.add_class(ask), packer.core
    return int(choice(core.policy, core.nodes, core.classes, core.known, core.worth, core.scales, t, 0)[0])


EXAMPLES = [
    # 100 (1 - (cpu left / 128,000 + gpu left / 8,000) / 2)
    pytest.param("bestfit", whole(1, cpu=32_000), room(1000, 1000, cpu=96_000), 68, id="best fit, half the CPU left"),
    pytest.param("bestfit", whole(2, cpu=96_000), room(1000, 1000, cpu=96_000), 100, id="best fit, nothing left"),
    # 100 (1 - (cpu free x asked / 128,000^2 + gpu free x asked / 8,000^2) / 2)
    pytest.param("dotprod", whole(8, cpu=128_000), room(*[1000] * 8, cpu=128_000), 0, id="dot product, all of all"),
    pytest.param("dotprod", whole(4, cpu=64_000), room(*[1000] * 8, cpu=128_000), 50, id="dot product, half of all"),
    pytest.param("gpu-packing", without_gpu(), room(1000, 500), 0, id="packing, no GPU asked for"),
    pytest.param("gpu-packing", share(300), room(1000, 500), 95, id="packing, a device in use, half of it free"),
    pytest.param("gpu-packing", share(600), room(1000, 500), 49, id="packing, a free device of a node in use"),
    pytest.param("gpu-packing", whole(2), room(1000, 1000, 500), 48, id="packing, two free devices of a node in use"),
    pytest.param("gpu-packing", whole(2), room(1000, 1000), 31, id="packing, an empty node of two devices"),
    pytest.param("gpu-clustering", without_gpu(), room(1000), 0, id="clustering, no GPU asked for"),
    pytest.param("gpu-clustering", whole(), room(1000, 1000), 25 + 18, id="clustering, an empty node"),
]


@pytest.mark.parametrize(("policy", "ask", "node", "expected"), EXAMPLES)
def test_the_score_of_a_node_is_the_published_one(policy, ask, node, expected):
    assert score(policy, ask, node) == expected


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param([whole()], 75 + 21, id="only this kind"),
        pytest.param([whole(), share(500)], 50 + 23, id="this kind among others"),
        pytest.param([whole(2)], 0 + 25, id="other kinds only"),
    ],
)
def test_clustering_prefers_nodes_with_the_same_kind_of_pod(earlier, expected):
    assert score("gpu-clustering", whole(), room(1000, 1000), run_before=earlier) == expected
