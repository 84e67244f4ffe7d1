"""Sickness of simulated nodes: what agents say of it, by chance, and the policy and test that a shard has for it."""

from collections.abc import Iterator
from random import Random
from typing import Any

from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.health import (
    Ailment,
    HealthAction,
    HealthCause,
    HealthPolicy,
    HealthTest,
    ReputationPolicy,
)
from tessera_schemas.commands import ReportHealth
from tessera_schemas.job import Template

FENCED = HealthCause.GPU_FAULT
ACTIONS = {
    HealthCause.SLOW: HealthAction.EVICT,
    HealthCause.GPU_LOST: HealthAction.IGNORE,
    FENCED: HealthAction.FENCE,
}
FENCING = Fencing(url="https://power.example/fence", after_seconds=1, timeout_seconds=20, at_most_percent=40)


def health_policy(out_percent: int, tenant: str, queue: str, test_fails: bool) -> HealthPolicy:
    """Policy by which each suspected node is tested once; a test that fails everywhere is a broken one."""
    simulated = {"simulate-seconds": "1", "simulate-exit-code": "1" if test_fails else "0"}
    template = Template(image="test:1", annotations={f"tessera.io/{name}": value for name, value in simulated.items()})
    whose: dict[str, Any] = {"tenant": tenant, "queue": queue, "template": template}
    test = HealthTest(gpus=1, time_limit_seconds=5, again_seconds=3600, **whose)
    reputation = ReputationPolicy(half_life_seconds=60, trial_seconds=60)
    return HealthPolicy(out_percent=out_percent, actions=ACTIONS, reputation=reputation, test=test)


def reports(random: Random, nodes: tuple[str, ...], seconds: float) -> Iterator[tuple[float, bytes]]:
    """Reports of two agents on the health of nodes: at odds with each other, again and again, some of it never over."""
    for _ in range(random.randrange(6)):
        node, source, at = random.choice(nodes), random.choice(("agent", "other")), random.uniform(1.0, seconds)
        causes = random.sample(tuple(HealthCause), k=random.choice((1, 1, 2)))
        ailments = tuple(Ailment(cause=cause) for cause in causes)
        said = [(at, ailments)]
        if random.random() < 0.8:
            said += [(at + random.uniform(0.05, 4), ())] + [(at + 4.1, ailments), (at + 4.2, ())] * random.randrange(3)
        for when, what in said:
            yield when, _report(node, source, what)
    if random.random() < 0.7:
        node, at = random.choice(nodes), random.uniform(1.0, seconds / 2)
        yield at, _report(node, "power", (Ailment(cause=FENCED),))
        yield at + random.uniform(2, 20), _report(node, "power", ())


def _report(node: str, source: str, ailments: tuple[Ailment, ...]) -> bytes:
    return ReportHealth(kind="report_health", v=1, node=node, source=source, ailments=ailments).to_bytes()
